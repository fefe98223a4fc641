//! Single controllers of [`crate::control`] for tests against a real API server. The binary starts
//! all of them, by [`crate::control::run`].

pub use crate::{
    context::{Context, MANAGER},
    ipam::{AddressService, Clock, ServeError, certificates},
};

pub mod foreign_cluster {
    pub use crate::foreign_cluster::run;
}

pub mod health {
    pub use crate::health::run;
}

pub mod identity {
    pub use crate::identity::run;
}

pub mod leader {
    pub use crate::leader::run;
}

pub mod namespace_map {
    pub use crate::namespace_map::run;
}

pub mod namespace_offloading {
    pub use crate::namespace_offloading::run;
}

pub mod network_config {
    pub use crate::network_config::run;
}

pub mod offer {
    pub use crate::offer::run;
}

pub mod peering {
    pub use crate::peering::run;
}

pub mod replicator {
    pub use crate::replicator::run;
}

pub mod shadow_endpoint_slice {
    pub use crate::shadow_endpoint_slice::run;
}

pub mod shadow_pod {
    pub use crate::shadow_pod::keep_up;
}

pub mod twin_namespace {
    pub use crate::twin_namespace::run;
}

pub mod webhook {
    pub use crate::webhook::serve;
}
