//! The kinds of lies, in the order in which they are told.

use crate::attack::Attack;
use crate::{crowd, forged, half_sent, limits, locks, resent, unheard};

/// When a kind is told, see `main.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// While an honest client is timed.
    Timed,
    /// When it is timed no more, and the attackers have been gone for a while.
    After,
    /// To a second server, of the data path `normal`, beside no honest client.
    Second,
    /// By another user, while one of the other kinds is told.
    Beside,
}

use Part::{After, Beside, Second, Timed};

pub(crate) struct Kind {
    pub name: &'static str,
    pub part: Part,
    /// Attackers must be another user than the server's.
    pub needs_root: bool,
    /// It is told by shared memory, too: it is about messages, not about a stream of bytes or a port, nor about what
    /// a server has in all, however it is asked.
    pub is_near: bool,
    pub lie: fn(&Attack) -> Result<(), String>,
}

const fn kind(part: Part, name: &'static str, lie: fn(&Attack) -> Result<(), String>) -> Kind {
    Kind { name, part, needs_root: false, is_near: true, lie }
}

const fn of_nobody(part: Part, name: &'static str, lie: fn(&Attack) -> Result<(), String>) -> Kind {
    Kind { needs_root: true, ..kind(part, name, lie) }
}

/// It says nothing more by shared memory, or cannot be told there.
const fn not_near(kind: Kind) -> Kind {
    Kind { is_near: false, ..kind }
}

/// Those with few connections first, as what the server may have resident grows with their number.
pub(crate) const ALL: &[Kind] = &[
    kind(Timed, "a write sent again without its data", resent::a_write),
    kind(Timed, "an append sent again without its data", resent::an_append),
    kind(Timed, "an attribute sent again without its data", resent::an_attribute),
    kind(Timed, "a link's target sent again without its data", resent::a_link),
    kind(Timed, "set-up lies", forged::set_up),
    kind(Timed, "slot lies", forged::slots),
    kind(Timed, "handle lies", forged::handles),
    kind(Timed, "range lies", forged::ranges),
    of_nobody(Timed, "a caller without rights", forged::rights),
    kind(Timed, "locks without end", locks::without_end),
    kind(Timed, "waits without end", locks::waits_without_end),
    kind(Timed, "callbacks never answered", locks::callbacks_never_answered),
    kind(Timed, "locks of others", locks::of_others),
    kind(Timed, "a file that all wait for", locks::a_graph),
    not_near(of_nobody(Timed, "a byte short", half_sent::a_byte_short)),
    of_nobody(Timed, "data that never comes", half_sent::data_that_never_comes),
    of_nobody(Timed, "replies not taken", half_sent::replies_not_taken),
    of_nobody(Timed, "a page read very often", half_sent::a_page_read_very_often),
    not_near(of_nobody(Timed, "requests of a dead connection", unheard::dead_connections)),
    not_near(of_nobody(Timed, "all locked files of the server", limits::all_locked_files)),
    not_near(kind(Timed, "a million opens", limits::opens_of_a_session)),
    not_near(of_nobody(Timed, "all opens of the server", limits::all_opens)),
    not_near(kind(Timed, "garbage", crowd::garbage)),
    kind(Timed, "a crowd that says hello", crowd::says_hello),
    not_near(kind(Timed, "a crowd that says nothing", crowd::says_nothing)),
    not_near(kind(Timed, "many silent connections", crowd::silent)),
    not_near(of_nobody(Timed, "all sessions of the server", limits::all_sessions)),
    kind(Second, "a write sent again, data path normal", resent::a_write),
    kind(Second, "an append sent again, data path normal", resent::an_append),
    not_near(of_nobody(After, "their resources are free after the lease", limits::freed)),
    not_near(kind(Second, "a server that stood still", unheard::a_pause)),
    of_nobody(Beside, BESIDE, limits::something_is_left),
];

/// What another user has done while one has taken all.
pub(crate) const BESIDE: &str = "something is left";

pub(crate) fn named(name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name)
}
