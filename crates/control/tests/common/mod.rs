//! A discovery that runs in the network of a node.

use std::{
    fs::File,
    os::fd::AsFd,
    thread::{self, JoinHandle},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::watch;
use tombolo_control::discovery::{self, Servers};
use tombolo_runtime::shutdown::Shutdown;
use tombolo_testing::Side;

/// It ends when it is stopped or dropped.
pub struct Running {
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// In a thread of its own, in the network namespace of the node.
    pub fn start(side: &Side, dns: Servers) -> Self {
        let shutdown = Shutdown::new();
        let (cluster, settings, until) =
            (side.cluster.clone(), side.settings.clone(), shutdown.clone());
        let network = format!("/run/netns/{}", cluster.node(1).network_namespace());
        let thread = thread::spawn(move || {
            let network = File::open(network).expect("the node's network");
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(network.as_fd(), kind).expect("into the network");
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = cluster.client().await.expect("a client");
                let (ready, _) = watch::channel(false);
                discovery::serve(client, settings, dns, ready, until).await.expect("it runs");
            });
        });
        Self { shutdown, thread: Some(thread) }
    }

    pub fn stop(mut self) {
        self.shutdown.trigger();
        self.thread.take().expect("it runs").join().expect("it ends well");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}
