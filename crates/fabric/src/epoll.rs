//! Sleeping by epoll: what providers whose queue pairs have descriptors share.

mod events;
#[allow(unsafe_code)]
mod sys;
mod waiter;

pub use events::{EpollEvents, READY_MAX};
pub use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP};
pub use sys::{
    Watch, counter_clear, epoll, epoll_wait, epoll_watch, eventfd, eventfd_set, timerfd,
    timerfd_once, timerfd_set,
};
pub use waiter::{EpollWaiter, WAKE};
