//! Client sessions for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dafs_client::{Session, SessionOptions, Url};
use dafs_fabric::{Provider, Providers};
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;

/// A session of the server at `url`, with options. What it reads is looked at for the servers' free
/// memory, but where times are measured.
///
/// # Panics
/// When it cannot be made.
pub fn session_with(url: &str, change: impl FnOnce(&mut SessionOptions)) -> Session {
    crate::served::marks();
    let url = Url::parse(url).expect("a URL");
    let mut options = SessionOptions::from_url(&url).expect("options");
    options.retry = Duration::from_secs(60);
    change(&mut options);
    Session::connect_url(Arc::new(TcpProvider::default()), &url, options).expect("connect").0
}

/// Options of a session whose connections are not to break: when one does, its calls end with an error.
pub fn unbroken() -> SessionOptions {
    let broken = Arc::new(AtomicBool::new(false));
    let cancel = Some(broken.clone());
    let tell = move |_: &str| broken.store(true, Ordering::Relaxed);
    SessionOptions { on_retry: Some(Arc::new(tell)), cancel, ..SessionOptions::default() }
}

/// A session of the server at `url`.
///
/// # Panics
/// When it cannot be made.
pub fn session(url: &str) -> Session {
    session_with(url, |_| {})
}

/// A session that goes by shared memory and by nothing else, made with all networks of the `dafs` command.
///
/// # Errors
/// It cannot be made.
pub fn session_by_shm(
    url: &str,
    change: impl FnOnce(&mut SessionOptions),
) -> dafs_client::Result<Session> {
    crate::served::marks();
    let url = Url::parse(url)?;
    let mut options = SessionOptions::from_url(&url)?;
    (options.retry, options.transport) = (Duration::from_secs(60), Some("shm".into()));
    change(&mut options);
    let networks: Vec<Arc<dyn Provider>> =
        vec![Arc::new(TcpProvider::new()), Arc::new(ShmProvider::new())];
    Session::connect(Providers::from(networks), &url.address(), options)
}
