//! The kubeconfig by which an identity is handed over. Of one that came from elsewhere only the
//! few fields here are taken: a kubeconfig can name programs to run and files to read.

use http::{Uri, uri::Scheme};
use serde_json::{Value, json};
use tombolo_api::{ClusterName, auth::Confidential, is_dns_label};

/// What it takes to use an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// URL of the API server.
    pub server: String,
    /// Certificates, in base64 of PEM, by which to trust it. `None`: those of the system.
    pub ca: Option<String>,
    /// The tenant namespace there.
    pub namespace: String,
    /// What shows who we are.
    pub credentials: Credentials,
}

/// What an identity is shown by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A token of a service account.
    Token(Confidential),
    /// A certificate.
    Certificate {
        /// The certificate, in base64 of PEM.
        certificate: String,
        /// Its key, in base64 of PEM. `None` on the way: the key never leaves who made it.
        key: Option<Confidential>,
    },
}

impl Credentials {
    /// For people: in which form the identity is.
    pub fn form(&self) -> &'static str {
        match self {
            Self::Token(_) => "token",
            Self::Certificate { .. } => "certificate",
        }
    }
}

/// A kubeconfig without what an [`Access`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kubeconfig has no {0}")]
pub struct Incomplete(&'static str);

impl Access {
    /// A kubeconfig, in JSON, which is YAML as well.
    pub fn kubeconfig(&self, cluster: &ClusterName) -> Confidential {
        let name = cluster.as_str();
        let mut cluster = json!({ "server": self.server });
        if let Some(ca) = &self.ca {
            cluster["certificate-authority-data"] = ca.as_str().into();
        }
        let user = match &self.credentials {
            Credentials::Token(token) => json!({ "token": token.reveal() }),
            Credentials::Certificate { certificate, key: None } => {
                json!({ "client-certificate-data": certificate })
            }
            Credentials::Certificate { certificate, key: Some(key) } => {
                json!({ "client-certificate-data": certificate, "client-key-data": key.reveal() })
            }
        };
        let context = json!({ "cluster": name, "user": name, "namespace": self.namespace });
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": name, "cluster": cluster }],
            "users": [{ "name": name, "user": user }],
            "contexts": [{ "name": name, "context": context }],
            "current-context": name,
        });
        config.to_string().into()
    }

    /// Reads the first cluster, user and context of a kubeconfig.
    pub fn read(kubeconfig: &Value) -> Result<Self, Incomplete> {
        let text = |pointer: &str, what| {
            let text = kubeconfig.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
            text.filter(|text| !text.is_empty()).ok_or(Incomplete(what))
        };
        let server = text("/clusters/0/cluster/server", "server")?;
        if !is_https(&server) {
            return Err(Incomplete("https server"));
        }
        let namespace = text("/contexts/0/context/namespace", "namespace")?;
        if !is_dns_label(&namespace, NAMESPACE_MAX) {
            return Err(Incomplete("valid namespace"));
        }
        let credentials = match text("/users/0/user/client-certificate-data", "certificate") {
            Ok(certificate) => {
                let key = text("/users/0/user/client-key-data", "key").ok();
                Credentials::Certificate { certificate, key: key.map(Confidential::from) }
            }
            Err(_) => {
                let token = text("/users/0/user/token", "token or certificate")?;
                Credentials::Token(token.into())
            }
        };
        Ok(Self {
            server,
            ca: text("/clusters/0/cluster/certificate-authority-data", "").ok(),
            namespace,
            credentials,
        })
    }
}

/// Whether a URL has a host, with or without a port, and nobody's name before it.
fn is_https(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    let (Some(host), Some(authority)) = (url.host(), url.authority()) else { return false };
    let expected = match url.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    url.scheme() == Some(&Scheme::HTTPS) && !host.is_empty() && authority.as_str() == expected
}

/// The longest that the name of a namespace can be.
const NAMESPACE_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access {
            server: "https://10.0.0.5:6443".to_owned(),
            ca: Some("UEVN".to_owned()),
            namespace: "liqo-tenant-rome".to_owned(),
            credentials: Credentials::Token("t0ken".to_owned().into()),
        }
    }

    fn value(access: &Access) -> Value {
        let kubeconfig = access.kubeconfig(&"milan".parse().unwrap());
        serde_json::from_str(kubeconfig.reveal()).unwrap()
    }

    #[test]
    fn an_access_is_read_as_it_is_written() {
        assert_eq!(Access::read(&value(&access())), Ok(access()));
        let plain = Access { ca: None, ..access() };
        assert_eq!(Access::read(&value(&plain)), Ok(plain));
    }

    #[test]
    fn a_certificate_comes_without_its_key_and_is_kept_with_it() {
        let (certificate, key) = ("Q0VSVA==".to_owned(), "S0VZ".to_owned().into());
        let with = |key| Access {
            credentials: Credentials::Certificate { certificate: certificate.clone(), key },
            ..access()
        };
        let (sent, kept) = (with(None), with(Some(key)));
        assert!(!value(&sent).to_string().contains("client-key"));
        for access in [sent, kept] {
            assert_eq!(Access::read(&value(&access)), Ok(access.clone()));
            assert!(!format!("{access:?}").contains("S0VZ"));
        }
    }

    #[test]
    fn programs_and_files_that_it_names_are_not_taken() {
        let mut kubeconfig = value(&access());
        kubeconfig["users"][0]["user"]["exec"] = json!({ "command": "sh" });
        kubeconfig["clusters"][0]["cluster"]["proxy-url"] = "http://evil".into();
        let again = Access::read(&kubeconfig).unwrap();
        assert_eq!(value(&again), value(&access()));
    }

    #[test]
    fn what_is_missing_is_named() {
        for (pointer, what) in [
            ("/clusters/0/cluster/server", "server"),
            ("/contexts/0/context/namespace", "namespace"),
            ("/users/0/user/token", "token or certificate"),
        ] {
            let mut kubeconfig = value(&access());
            *kubeconfig.pointer_mut(pointer).unwrap() = Value::Null;
            assert_eq!(Access::read(&kubeconfig), Err(Incomplete(what)));
        }
        for server in ["http://10.0.0.5", "https://", "https://a b", "https://a:b", "https://a@b"] {
            let wrong = Access { server: server.to_owned(), ..access() };
            assert_eq!(Access::read(&value(&wrong)), Err(Incomplete("https server")), "{server}");
        }
        let wrong = Access { namespace: "../secrets".to_owned(), ..access() };
        assert_eq!(Access::read(&value(&wrong)), Err(Incomplete("valid namespace")));
    }
}
