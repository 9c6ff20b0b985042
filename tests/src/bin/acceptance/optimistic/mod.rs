//! optimistic: reads without the server, beside bare copies in the same process, by the paper's
//! experiments, and against a storm of changes.

pub(crate) mod counted;
mod hot;
pub(crate) mod lost;
mod paper;
mod speed;
mod storm;

pub(crate) use hot::hot;
pub(crate) use lost::lost;
pub(crate) use paper::paper;
pub(crate) use speed::hits;
pub(crate) use storm::{storm, storm_by_tcp};
