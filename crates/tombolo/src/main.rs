//! The program `tombolo`: one file a subcommand.

mod bars;
mod component;
mod connection;
mod image;
mod install;
mod offload;
mod peer;
mod peering;
mod peers;
mod playground;
mod status;
mod uninstall;
mod unoffload;
mod unpeer;
mod watching;

use clap::{Parser, Subcommand};

/// Join Kubernetes clusters: a remote cluster appears as a virtual node
///
/// Pods scheduled to the virtual node run in the remote cluster. Services, endpoints, ConfigMaps
/// and Secrets of an offloaded namespace follow them. Encrypted tunnels connect the pod networks,
/// even where their address ranges overlap. Clusters peer as equals, without a central control
/// plane.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install Tombolo in a cluster, or upgrade it
    ///
    /// Applies the CRDs, the RBAC rules and the components in namespace liqo, then waits until all
    /// components are ready. Run it again to upgrade or to change settings. Options that are not
    /// given keep their current value, except --image, --api-server-url and the CIDRs: give these
    /// again if their defaults do not fit.
    Install(install::Arguments),
    /// Remove Tombolo from a cluster
    ///
    /// Removes the interfaces, routes and rules of every node first, then all objects, CRDs and
    /// namespaces of Tombolo. Refuses while namespaces are offloaded or clusters are peered, unless
    /// --purge is given.
    Uninstall(uninstall::Arguments),
    /// Peer with another cluster: it becomes a virtual node of this one
    ///
    /// Sets `join` of the ForeignCluster and waits until the virtual node is Ready. The peering has
    /// one direction: pods of this cluster can run in the other one. A peering that the other
    /// cluster refuses is rolled back.
    Peer(peer::Arguments),
    /// End the peering with another cluster
    ///
    /// Stops the pods that run there for this cluster and waits until the virtual node, the offer
    /// and the tunnel are gone. A peering in the other direction stays, and with it the tunnel.
    Unpeer(unpeer::Arguments),
    /// Extend a namespace to peered clusters
    ///
    /// Its pods can run there, and its Services, endpoints, ConfigMaps and Secrets are reflected.
    Offload(offload::Arguments),
    /// Restrict an offloaded namespace to this cluster again
    ///
    /// Stops its pods in other clusters and deletes the twin namespaces.
    Unoffload(unoffload::Arguments),
    /// Show this cluster, its peers, and borrowed and lent resources
    Status(status::Arguments),
    /// Run real clusters on this machine
    ///
    /// Each cluster has its own etcd, API server, scheduler and kubelets, and each node its own
    /// namespaces. Starting and removing clusters needs root.
    Playground(playground::Arguments),
    /// Write this program as a container image (an OCI tar)
    Image(image::Arguments),
    #[command(flatten)]
    Component(component::Component),
}

fn main() -> std::process::ExitCode {
    // Fails only if a provider is installed already, and every dependency installs this one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let result = match Arguments::parse().command {
        Command::Install(arguments) => install::run(&arguments),
        Command::Uninstall(arguments) => uninstall::run(&arguments),
        Command::Peer(arguments) => peer::run(&arguments),
        Command::Unpeer(arguments) => unpeer::run(&arguments),
        Command::Offload(arguments) => offload::run(&arguments),
        Command::Unoffload(arguments) => unoffload::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Playground(arguments) => playground::run(arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Component(component) => component::run(component),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tombolo: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
