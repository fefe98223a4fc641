//! `tombolo install`: applies or prints all manifests.

mod apply;
mod detect;
mod exposure;
mod manifests;
mod ready;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DeleteParams;
use kube::{Api, Client};
use tombolo_api::config::ClusterConfig;
use tombolo_api::{Cidr, ClusterId, ClusterName, names};

use crate::bars::Bars;
use crate::connection::{Connection, Target};
use exposure::Exposure;
use manifests::Values;

pub use apply::{MANAGER, is_missing};
pub use ready::{Component, SELECTOR, components};

#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub target: Target,
    /// Name of this cluster [default: unchanged, or from the kubeconfig]
    ///
    /// A DNS label of at most 45 characters. Other clusters show it in names of nodes and
    /// namespaces, so clusters that peer need different names.
    #[arg(long, value_name = "NAME")]
    pub cluster_name: Option<ClusterName>,
    /// Permanent id of this cluster [default: unchanged, or a random UUID]
    ///
    /// A DNS label. Other clusters identify this one by it, so it can't change until Tombolo is
    /// uninstalled.
    #[arg(long, value_name = "ID")]
    pub cluster_id: Option<ClusterId>,
    /// PodCIDR of this cluster [default: detected]
    ///
    /// Detected from kubeadm, kube-controller-manager or the nodes. Set it if the detected CIDR
    /// does not contain all pods.
    #[arg(long, value_name = "CIDR")]
    pub pod_cidr: Option<Cidr>,
    /// ServiceCIDR of this cluster [default: detected]
    #[arg(long, value_name = "CIDR")]
    pub service_cidr: Option<Cidr>,
    /// URL at which other clusters reach this API server [default: from the kubeconfig]
    ///
    /// Peers use it with the identity that the auth service issues to them. Set it if the URL in
    /// the kubeconfig works only from this machine.
    #[arg(long, value_name = "URL")]
    pub api_server_url: Option<String>,
    /// Whether other clusters get an identity without a token
    ///
    /// By default they present the token in Secret liqo/auth-token. Enable it only where everyone
    /// who can reach the auth service is trusted.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub empty_token: Option<bool>,
    #[command(flatten)]
    pub auth: exposure::Flags,
    /// Whether clients of the address service need a certificate of this cluster (mTLS)
    ///
    /// By default every pod of this cluster can use the address service.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub ipam_mtls: Option<bool>,
    /// Container image of the components
    #[arg(long, default_value = "localhost/tombolo:dev")]
    pub image: String,
    /// Print the manifests instead of applying them
    #[arg(long)]
    pub print: bool,
    /// Seconds to wait until all components are ready
    #[arg(long, default_value_t = 180, value_name = "SECONDS")]
    pub timeout: u64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let connection = arguments.target.connect().await?;
        let bars = Bars::new();
        if arguments.print {
            let values = values(arguments, &connection, &|_| {}).await?;
            print!("{}", manifests::print(&values)?);
            return Ok(());
        }
        let done = install(arguments, &connection, &bars).await;
        bars.finish();
        let installed = done?;
        println!(
            "Tombolo runs in {} (id {}). List discovered clusters with `kubectl get \
             foreignclusters` and peer with `tombolo peer NAME`.",
            installed.cluster_name, installed.cluster_id
        );
        match tombolo_control::auth_url::find(&connection.client).await {
            Ok(url) => println!("Auth service for other clusters: {url}"),
            Err(error) => println!(
                "The auth service has no URL for other clusters yet: {:#}.",
                anyhow::Error::from(error)
            ),
        }
        if let Some(advice) = exposure::advice(&connection.client).await? {
            println!("{advice}");
        }
        Ok(())
    })
}

/// Name and id of the cluster.
#[derive(Debug, Clone)]
pub struct Installed {
    pub cluster_name: ClusterName,
    pub cluster_id: ClusterId,
}

pub async fn install(
    arguments: &Arguments,
    connection: &Connection,
    bars: &Bars,
) -> Result<Installed> {
    let name = cluster_name(arguments, connection).await?;
    let scope = name.as_str();
    let values = values(arguments, connection, &|what| bars.say(scope, what)).await?;
    let objects = manifests::objects(&values)?;
    let client = &connection.client;
    withdraw_uninstall(client).await?;
    for (done, object) in objects.iter().enumerate() {
        bars.share(scope, "applying manifests", done, objects.len());
        apply::apply(client, object).await?;
    }
    values.exposure.remove_unused(client).await?;
    bars.say(scope, format!("{} objects applied", objects.len()));
    let timeout = Duration::from_secs(arguments.timeout);
    ready::wait(client, timeout, |what| bars.say(scope, what)).await?;
    Ok(Installed { cluster_name: values.cluster_name, cluster_id: values.cluster_id })
}

/// After an interrupted uninstall, its ConfigMap would make the nodes clean up again.
async fn withdraw_uninstall(client: &Client) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), names::NAMESPACE);
    match api.delete(names::UNINSTALL, &DeleteParams::default()).await {
        Err(error) if !is_missing(&error) => {
            Err(error).context("delete ConfigMap liqo/liqo-uninstall")
        }
        _ => Ok(()),
    }
}

/// The settings of the installation, if there is one.
pub async fn settings(client: &Client) -> Result<Option<ConfigMap>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), names::NAMESPACE);
    api.get_opt(names::CLUSTER_SETTINGS).await.context("read ConfigMap liqo/liqo-cluster")
}

/// Name and id of the cluster; fails with advice when Tombolo is not installed.
pub async fn identity(connection: &Connection) -> Result<Installed> {
    let found = settings(&connection.client).await?;
    let identity = found.as_ref().and_then(|settings| {
        let data = settings.data.as_ref()?;
        Some(Installed {
            cluster_name: data.get("CLUSTER_NAME")?.parse().ok()?,
            cluster_id: data.get("CLUSTER_ID")?.parse().ok()?,
        })
    });
    identity.with_context(|| {
        format!(
            "Tombolo is not installed in the cluster at {}: run `tombolo install`",
            connection.url
        )
    })
}

async fn cluster_name(arguments: &Arguments, connection: &Connection) -> Result<ClusterName> {
    if let Some(name) = &arguments.cluster_name {
        return Ok(name.clone());
    }
    if let Ok(earlier) = identity(connection).await {
        return Ok(earlier.cluster_name);
    }
    let label = as_label(&connection.cluster);
    label.parse().with_context(|| {
        format!("derive a cluster name from {:?}: set --cluster-name", connection.cluster)
    })
}

async fn values(
    arguments: &Arguments,
    connection: &Connection,
    say: &(dyn Fn(String) + Sync),
) -> Result<Values> {
    let client = &connection.client;
    ensure!(
        !arguments.image.is_empty() && !arguments.image.contains(['"', '\\', ' ', '\n']),
        "--image {:?} is not an image name",
        arguments.image
    );
    let earlier = identity(connection).await.ok();
    let cluster_id = match (&arguments.cluster_id, earlier) {
        (Some(wanted), Some(earlier)) if *wanted != earlier.cluster_id => bail!(
            "this cluster has the permanent id {}: omit --cluster-id, or run `tombolo \
             uninstall` first",
            earlier.cluster_id
        ),
        (Some(wanted), _) => wanted.clone(),
        (None, Some(earlier)) => earlier.cluster_id,
        (None, None) => uuid::Uuid::new_v4().to_string().parse().expect("a UUID is a DNS label"),
    };
    let facts = detect::facts(client).await?;
    let pods = detect::pods(arguments.pod_cidr, &facts)?;
    say(format!("PodCIDR {} ({})", pods.cidr, pods.source));
    let services = detect::services(arguments.service_cidr, &facts)?;
    say(format!("ServiceCIDR {} ({})", services.cidr, services.source));
    detect::check(pods.cidr, services.cidr, &facts)?;
    let configs: Api<ClusterConfig> = Api::all(client.clone());
    let configured = match configs.get_opt(names::CLUSTER_CONFIG).await {
        // The CRD does not exist yet.
        Err(error) if is_missing(&error) => None,
        other => other.context("read ClusterConfig cluster")?,
    };
    let ipam_mtls = match arguments.ipam_mtls {
        Some(wanted) => wanted,
        None => settings(client).await?.is_some_and(|earlier| {
            earlier.data.is_some_and(|data| data.get("IPAM_MTLS").is_some_and(|it| it == "true"))
        }),
    };
    Ok(Values {
        image: arguments.image.clone(),
        cluster_name: cluster_name(arguments, connection).await?,
        cluster_id,
        api_server_url: detect::api_server(
            arguments.api_server_url.as_deref(),
            &connection.url,
            &facts,
        )?,
        pod_cidr: pods.cidr,
        service_cidr: services.cidr,
        ipam_mtls,
        exposure: Exposure::decide(&arguments.auth, client).await?,
        // Without the flag, a later change of the ClusterConfig by the user stays.
        empty_token: match (arguments.empty_token, configured) {
            (None, Some(_)) => None,
            (wanted, _) => Some(wanted.unwrap_or(false)),
        },
    })
}

/// A DNS label from a cluster name in a kubeconfig: `arn:aws:eks:…/Prod` → `arn-aws-eks-…-prod`.
fn as_label(text: &str) -> String {
    let mut label = String::new();
    for c in text.chars().map(|c| c.to_ascii_lowercase()) {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            label.push(c);
        } else if !label.is_empty() && !label.ends_with('-') {
            label.push('-');
        }
    }
    label.truncate(ClusterName::MAX_LEN);
    label.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_name_in_a_kubeconfig_becomes_a_dns_label() {
        assert_eq!(as_label("rome"), "rome");
        assert_eq!(
            as_label("gke_my-project_europe-west8_Prod"),
            "gke-my-project-europe-west8-prod"
        );
        assert_eq!(as_label("--a  b--"), "a-b");
        assert!(as_label(&"x/".repeat(60)).parse::<ClusterName>().is_ok());
        assert!(as_label("ü").parse::<ClusterName>().is_err());
    }
}
