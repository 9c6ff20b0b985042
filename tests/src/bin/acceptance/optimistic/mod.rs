//! optimistic: reads without the server, beside bare copies in the same process, and against a storm of changes.

mod hot;
mod speed;
mod storm;

pub(crate) use hot::hot;
pub(crate) use speed::hits;
pub(crate) use storm::storm;
