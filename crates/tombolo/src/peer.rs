//! `tombolo peer`: starts a peering and shows its progress.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tombolo_api::auth::Confidential;
use tombolo_api::discovery::{AuthStatus, DiscoveryType, ForeignCluster, ForeignClusterSpec};
use tombolo_api::{ClusterId, Fingerprint, names};
use tombolo_core::discovery::PinnedBy;
use tombolo_core::peering::Milestone;
use tombolo_core::view::Entry;

use crate::bars::Bars;
use crate::connection::{Connection, Target};
use crate::install::{self, Installed, MANAGER};
use crate::peering::{Outcome, Peering, Token, View};
use crate::peers;
use crate::watching::Watches;

/// How long the deletion of a ForeignCluster may take during rollback.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    pub target: Target,
    /// Name, id or auth service URL of the other cluster
    ///
    /// Discovered clusters are listed by `kubectl get foreignclusters`. A cluster that is not
    /// discovered is added by its URL, such as https://auth.example.com:443.
    pub cluster: String,
    /// File with the token of the other cluster, or - for standard input
    ///
    /// It is in the Secret liqo/auth-token of that cluster. No token is needed if Tombolo was
    /// installed there with --empty-token. It is stored in a Secret in namespace liqo.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Name of the new ForeignCluster, with a URL [default: host and port of the URL]
    #[arg(long)]
    pub name: Option<String>,
    /// SHA-256 fingerprint of the auth service's certificate
    ///
    /// Without it, a cluster given by its URL is pinned to the first certificate it presents. Give
    /// it to exclude an attacker on the path.
    #[arg(long)]
    pub fingerprint: Option<Fingerprint>,
    /// Seconds to wait until the virtual node is Ready
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub timeout: u64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let connection = arguments.target.connect().await?;
        let home = install::identity(&connection).await?;
        let bars = Bars::new();
        let done = peer(arguments, &connection, &home, &bars).await;
        bars.finish();
        let node = done?;
        println!(
            "Node {node} is Ready. Run `tombolo offload namespace NAME` to let pods of a namespace run \
             there."
        );
        Ok(())
    })
}

/// Establishes the peering and returns the name of the virtual node.
pub async fn peer(
    arguments: &Arguments,
    connection: &Connection,
    home: &Installed,
    bars: &Bars,
) -> Result<String> {
    let client = &connection.client;
    let token = arguments.token_file.as_ref().map(read_token).transpose()?;
    let mut undo = Undo::default();
    let mut found = peers::find(client, &arguments.cluster).await?;
    if let Some(leaving) = found.take_if(|cluster| cluster.metadata.deletion_timestamp.is_some()) {
        bars.say(&leaving.name_any(), "waiting until the previous ForeignCluster is deleted");
        peers::gone(client, &leaving, Duration::from_secs(arguments.timeout)).await?;
        found = peers::find(client, &arguments.cluster).await?;
    }
    let cluster = match found {
        Some(cluster) => {
            if let Some(fingerprint) = arguments.fingerprint {
                pin(client, &cluster, fingerprint).await?;
                undo.pinned = Some(cluster.clone());
            }
            cluster
        }
        None if arguments.cluster.starts_with("https://") => {
            let made = make(client, arguments).await?;
            undo.made = Some(made.clone());
            made
        }
        None => peers::require(client, &arguments.cluster).await?,
    };
    let name = cluster.name_any();
    if !cluster.spec.join {
        undo.joined = Some(name.clone());
        peers::set_join(client, &name, true).await?;
    }
    let outcome =
        establish(arguments, client, home, &cluster, token.as_ref(), &mut undo, bars).await;
    match outcome {
        Ok(node) => Ok(node),
        Err(Failure { error, keep: false }) => {
            undo.run(client).await;
            Err(error)
        }
        Err(Failure { error, keep: true }) => Err(error),
    }
}

struct Failure {
    error: anyhow::Error,
    /// Whether the peering is kept, because the controllers continue it.
    keep: bool,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { error, keep: true }
    }
}

async fn establish(
    arguments: &Arguments,
    client: &Client,
    home: &Installed,
    cluster: &ForeignCluster,
    token: Option<&Confidential>,
    undo: &mut Undo,
    bars: &Bars,
) -> Result<String, Failure> {
    let name = cluster.name_any();
    let timeout = Duration::from_secs(arguments.timeout);
    let scope = format!("{} → {}", home.cluster_name, peers::display_name(cluster));
    let mut given = Token::NotGiven;
    if let Some(token) = token {
        let known = identified(client, &name, timeout).await?;
        let status = known.cluster.status.as_ref().and_then(|status| status.auth_status);
        let before = tokens(client, &known.id).await?;
        given = match status {
            Some(AuthStatus::Refused) => Token::GivenInsteadOfAnother,
            _ if !before.is_empty() => Token::GivenInsteadOfAnother,
            _ => Token::Given,
        };
        store_token(client, &known.id, token).await?;
        let is_same = |secret: &Secret| secret.name_any() == token_secret(&known.id);
        undo.token = Some((known.id.clone(), before.into_iter().find(is_same).and_then(text)));
    }
    let mut watches = Watches::default();
    let peering = Peering::watch(client, &mut watches, &name);
    let mut last = None;
    let ended = watches
        .until(timeout, || {
            let view = peering.view();
            let outcome = view.outcome(given);
            if let Outcome::Waiting { done, waiting_for } = &outcome {
                let of = Milestone::ALL.len();
                bars.say(&scope, format!("{waiting_for} ({done} of {of} steps done)"));
            }
            let settled = !matches!(outcome, Outcome::Waiting { .. });
            last = Some((view, outcome.clone()));
            settled.then_some(outcome)
        })
        .await?;
    let (view, outcome) = match (ended, last) {
        (Some(outcome), Some((view, _))) => (view, outcome),
        (None, Some((view, outcome))) => (view, outcome),
        _ => {
            let error = anyhow::anyhow!("the ForeignCluster {name} could not be watched");
            return Err(Failure { error, keep: true });
        }
    };
    match outcome {
        Outcome::Established { node } => {
            bars.say(&scope, format!("peered: node {node} is Ready"));
            Ok(node)
        }
        Outcome::Refused { why } => Err(Failure { error: anyhow::anyhow!(why), keep: false }),
        Outcome::Waiting { .. } => {
            let keep = view.is_authenticated();
            let stuck = view.stuck(given);
            let next = if keep {
                format!(
                    "The controllers keep trying: `tombolo status` shows the progress, `tombolo \
                     unpeer {name}` ends the attempt."
                )
            } else {
                "The attempt was rolled back.".to_owned()
            };
            let seconds = timeout.as_secs();
            let error =
                anyhow::anyhow!("no peering with {name} after {seconds} s. {stuck}\n{next}");
            Err(Failure { error, keep })
        }
    }
}

/// The changes of this command, for rollback.
#[derive(Default)]
struct Undo {
    made: Option<ForeignCluster>,
    joined: Option<String>,
    /// The ForeignCluster before its pin was changed.
    pinned: Option<ForeignCluster>,
    /// The cluster whose token was stored, and the previous token.
    token: Option<(ClusterId, Option<Confidential>)>,
}

impl Undo {
    /// Best effort: the error that caused the rollback is the one to report.
    async fn run(self, client: &Client) {
        if let Some(cluster) = self.made {
            let clusters: Api<ForeignCluster> = Api::all(client.clone());
            let _ = clusters.delete(&cluster.name_any(), &DeleteParams::default()).await;
            let _ = peers::gone(client, &cluster, ROLLBACK_TIMEOUT).await;
        } else if let Some(name) = self.joined {
            let _ = peers::set_join(client, &name, false).await;
        }
        if let Some(before) = self.pinned {
            let noted = before.annotations().get(names::PINNED_ANNOTATION).map(String::as_str);
            let _ = set_pin(client, &before, before.spec.fingerprint, noted).await;
        }
        match self.token {
            Some((id, Some(before))) => drop(store_token(client, &id, &before).await),
            Some((id, None)) => {
                let secrets: Api<Secret> = Api::namespaced(client.clone(), names::NAMESPACE);
                let _ = secrets.delete(&token_secret(&id), &DeleteParams::default()).await;
            }
            None => {}
        }
    }
}

async fn make(client: &Client, arguments: &Arguments) -> Result<ForeignCluster> {
    let url = arguments.cluster.trim_end_matches('/').to_owned();
    let name = arguments.name.clone().unwrap_or_else(|| object_name(&url));
    let spec = ForeignClusterSpec {
        auth_url: url.clone(),
        join: true,
        cluster_identity: None,
        ttl: None,
        fingerprint: arguments.fingerprint,
    };
    let mut cluster = ForeignCluster::new(&name, spec);
    cluster
        .labels_mut()
        .insert(names::DISCOVERY_TYPE_LABEL.into(), DiscoveryType::Manual.to_string());
    let api: Api<ForeignCluster> = Api::all(client.clone());
    let parameters = PostParams { field_manager: Some(MANAGER.into()), ..Default::default() };
    api.create(&parameters, &cluster)
        .await
        .with_context(|| format!("create ForeignCluster {name} for {url}"))
}

/// Pins an existing ForeignCluster to the given certificate, as if set manually.
async fn pin(client: &Client, cluster: &ForeignCluster, given: Fingerprint) -> Result<()> {
    check_pin(cluster, given)?;
    set_pin(client, cluster, Some(given), None).await.with_context(|| {
        format!("pin ForeignCluster {} to the certificate {given}", cluster.name_any())
    })
}

async fn set_pin(
    client: &Client,
    cluster: &ForeignCluster,
    fingerprint: Option<Fingerprint>,
    noted: Option<&str>,
) -> kube::Result<()> {
    let patch = Patch::Merge(json!({
        "metadata": { "uid": cluster.uid(), "annotations": { names::PINNED_ANNOTATION: noted } },
        "spec": { "fingerprint": fingerprint },
    }));
    let api: Api<ForeignCluster> = Api::all(client.clone());
    let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..Default::default() };
    api.patch(&cluster.name_any(), &parameters, &patch).await.map(drop)
}

/// Refuses a ForeignCluster that is pinned to another certificate: it may hold an identity issued
/// under that one.
fn check_pin(cluster: &ForeignCluster, given: Fingerprint) -> Result<()> {
    let Some(there) = cluster.spec.fingerprint.filter(|there| *there != given) else {
        return Ok(());
    };
    let (name, url) = (cluster.name_any(), &cluster.spec.auth_url);
    let that = Entry::from_resource(cluster).pinned_by().unwrap_or(PinnedBy::FirstUse).that();
    let patch = json!({ "spec": { "fingerprint": given } });
    bail!(
        "ForeignCluster {name} ({url}) is pinned to the certificate {there}, which is the one that \
         {that}, and not to {given}. If {given} is right, change the pin and try again: `kubectl \
         patch foreigncluster {name} --type merge -p '{patch}'`. If not, another party may answer \
         at this URL."
    )
}

/// `https://auth.example.com:8443/x` → `auth-example-com-8443`.
fn object_name(url: &str) -> String {
    let host = url.trim_start_matches("https://").split('/').next().unwrap_or_default();
    let dashed: String = host
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    let name = dashed.trim_matches('-');
    if name.is_empty() { "peer".to_owned() } else { name.chars().take(63).collect() }
}

fn read_token(path: &PathBuf) -> Result<Confidential> {
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin()).context("read the token from standard input")
    } else {
        std::fs::read_to_string(path)
            .with_context(|| format!("read the token from {}", path.display()))
    };
    let token = text?.trim().to_owned();
    if token.is_empty() {
        bail!("{} holds no token", path.display());
    }
    Ok(token.into())
}

/// A ForeignCluster whose id is known.
struct Identified {
    cluster: Arc<ForeignCluster>,
    id: ClusterId,
}

/// Waits for the id of the other cluster, which its auth service publishes.
async fn identified(client: &Client, name: &str, timeout: Duration) -> Result<Identified, Failure> {
    let mut watches = Watches::default();
    let api: Api<ForeignCluster> = Api::all(client.clone());
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let store = watches.keep(api, only);
    let known = || {
        let cluster = store.state().first()?.clone();
        let id = cluster.spec.cluster_identity.clone()?.cluster_id;
        Some(Identified { cluster, id })
    };
    let found = watches.until(timeout, known).await?;
    found.ok_or_else(|| {
        let state = store.state();
        let url = state.first().map_or("?", |cluster| cluster.spec.auth_url.as_str());
        let why = state.first().map(|cluster| View::of(cluster).stuck(Token::Given));
        Failure {
            error: anyhow::anyhow!(
                "the auth service at {url} has not sent the id of its cluster. {}",
                why.unwrap_or_default()
            ),
            keep: false,
        }
    })
}

fn token_secret(id: &ClusterId) -> String {
    format!("{}-{id}", names::AUTH_TOKEN_SECRET)
}

/// The stored tokens for a cluster.
async fn tokens(client: &Client, id: &ClusterId) -> Result<Vec<Secret>> {
    let api: Api<Secret> = Api::namespaced(client.clone(), names::NAMESPACE);
    let labels = format!("{},{}={id}", names::AUTH_TOKEN_LABEL, names::CLUSTER_ID_LABEL);
    let found = api.list(&ListParams::default().labels(&labels)).await;
    Ok(found.with_context(|| format!("list the tokens for cluster {id} in namespace liqo"))?.items)
}

fn text(secret: Secret) -> Option<Confidential> {
    let token = secret.data?.remove(names::AUTH_TOKEN_KEY)?;
    String::from_utf8(token.0).ok().map(Confidential::from)
}

async fn store_token(client: &Client, id: &ClusterId, token: &Confidential) -> Result<()> {
    let name = token_secret(id);
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": {names::AUTH_TOKEN_LABEL: "", names::CLUSTER_ID_LABEL: id},
        },
        "stringData": {names::AUTH_TOKEN_KEY: token.reveal()},
    });
    let api: Api<Secret> = Api::namespaced(client.clone(), names::NAMESPACE);
    let parameters = PatchParams::apply(MANAGER).force();
    api.patch(&name, &parameters, &Patch::Apply(&secret))
        .await
        .map(drop)
        .with_context(|| format!("write Secret liqo/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_name_derives_from_host_and_port() {
        assert_eq!(object_name("https://auth.example.com:8443/x"), "auth-example-com-8443");
        assert_eq!(object_name("https://192.0.2.1:30443"), "192-0-2-1-30443");
        assert_eq!(object_name("https://[fd00::1]:443"), "fd00--1--443");
        assert_eq!(object_name("https://"), "peer");
    }

    #[test]
    fn a_pinned_certificate_is_not_replaced() {
        let (first, other) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let spec = serde_json::from_value(json!({ "authUrl": "https://milan" })).unwrap();
        let mut milan = ForeignCluster::new("milan", spec);
        assert!(check_pin(&milan, first).is_ok());
        milan.spec.fingerprint = Some(first);
        assert!(check_pin(&milan, first).is_ok());
        let error = check_pin(&milan, other).unwrap_err().to_string();
        for part in [first.to_string(), other.to_string(), "kubectl patch".to_owned()] {
            assert!(error.contains(&part), "{part} is not in {error}");
        }
        // An announced certificate is not replaced either, and the error names its source.
        let (key, value) = PinnedBy::Mdns.annotation(first);
        milan.annotations_mut().insert(key, value);
        assert!(check_pin(&milan, first).is_ok());
        let error = check_pin(&milan, other).unwrap_err().to_string();
        assert!(error.contains("it announces by mDNS"), "{error}");
    }
}
