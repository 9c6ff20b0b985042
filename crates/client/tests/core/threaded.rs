//! The scripted server over TCP, on a thread.

#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use dafs_client::{Session, SessionOptions};
use dafs_fabric::Address;
use dafs_fabric_tcp::TcpProvider;

use crate::fake::Fake;

/// A server on a thread of its own, told what to do by closures.
pub struct Server {
    pub address: Address,
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

type Order = Box<dyn FnOnce(&mut Fake) -> bool + Send>;

impl Server {
    pub fn start() -> Server {
        let (orders, inbox) = channel();
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || serve(&tell, &inbox));
        Server { address: told.recv().expect("an address"), orders, thread: Some(thread) }
    }

    pub fn with<R: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Fake) -> R + Send + 'static,
    ) -> R {
        let (tell, told) = channel();
        let order = move |fake: &mut Fake| {
            tell.send(order(fake)).expect("somebody waits");
            true
        };
        self.orders.send(Box::new(order)).expect("the server runs");
        told.recv().expect("the order is done")
    }

    pub fn connect(&self, options: SessionOptions) -> Session {
        Session::connect(Arc::new(TcpProvider::new()), &self.address, options).expect("connect")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails where the server panicked; the join tells.
        drop(self.orders.send(Box::new(|_| false)));
        let result = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            result.expect("a thread").expect("the server did not panic");
        }
    }
}

fn serve(tell: &Sender<Address>, inbox: &Receiver<Order>) {
    let address = Address::parse("tcp://127.0.0.1:0").expect("address");
    let mut fake = Fake::new(Arc::new(TcpProvider::new()), &address);
    tell.send(fake.address.clone()).expect("somebody waits");
    loop {
        fake.progress();
        while let Ok(order) = inbox.try_recv() {
            if !order(&mut fake) {
                return;
            }
        }
        if let Some(waiter) = fake.waiter() {
            waiter.wait(Some(Duration::from_millis(1)));
        }
    }
}
