//! The target cluster of a command, from kubeconfig and context. Connecting fails early, with
//! advice, if the API server does not answer.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Target {
    /// Path of the kubeconfig [default: $KUBECONFIG, or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// A connection to a cluster whose API server has answered.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    /// URL of the API server in the kubeconfig.
    pub url: String,
    /// Name of the cluster in the kubeconfig.
    pub cluster: String,
}

const TIMEOUT: Duration = Duration::from_secs(10);

impl Target {
    pub async fn connect(&self) -> Result<Connection> {
        let (kubeconfig, source) = self.read()?;
        let context = self.context.clone().or_else(|| kubeconfig.current_context.clone());
        let Some(context) = context else {
            bail!("{source} has no current context: set --context");
        };
        let known: Vec<&str> = kubeconfig.contexts.iter().map(|c| c.name.as_str()).collect();
        if !known.contains(&context.as_str()) {
            bail!("{source} has no context {context:?}; it has: {}", known.join(", "));
        }
        let chosen = kubeconfig.contexts.iter().find(|c| c.name == context);
        let cluster = chosen.and_then(|c| Some(c.context.as_ref()?.cluster.clone()));
        let options = KubeConfigOptions { context: Some(context.clone()), ..Default::default() };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let config = config.with_context(|| format!("use context {context:?} of {source}"))?;
        let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = tombolo_runtime::client::build(&config)
            .with_context(|| format!("make a client for {url}"))?;
        let advice = format!(
            "is the cluster running, and is context {context:?} of {source} the right one? \
             (set --kubeconfig and --context otherwise)"
        );
        match tokio::time::timeout(TIMEOUT, client.apiserver_version()).await {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 401 || status.code == 403 => {
                bail!(
                    "the API server at {url} refused the credentials of context {context:?} in \
                     {source}: {}",
                    status.message
                )
            }
            Ok(Err(error)) => {
                bail!("the API server at {url} can't be reached ({}): {advice}", causes(&error))
            }
            Err(_) => bail!(
                "the API server at {url} did not answer within {} s: {advice}",
                TIMEOUT.as_secs()
            ),
        }
        Ok(Connection { client, url, cluster: cluster.unwrap_or(context) })
    }

    fn read(&self) -> Result<(Kubeconfig, String)> {
        if let Some(path) = &self.kubeconfig {
            let source = path.display().to_string();
            let read = Kubeconfig::read_from(path);
            let failed = |error| {
                anyhow::anyhow!("the kubeconfig {source} can't be used: {}", causes(&error))
            };
            return Ok((read.map_err(failed)?, source));
        }
        let source = match std::env::var("KUBECONFIG") {
            Ok(path) if !path.is_empty() => format!("the kubeconfig {path} ($KUBECONFIG)"),
            _ => "the kubeconfig ~/.kube/config".to_owned(),
        };
        let read = Kubeconfig::read();
        Ok((read.with_context(|| format!("read {source}: set --kubeconfig"))?, source))
    }
}

/// An error and its causes, each text once.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let text = text.trim_start_matches("ServiceError: ").to_owned();
        if !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.url)
    }
}
