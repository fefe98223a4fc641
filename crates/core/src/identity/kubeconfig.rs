//! The kubeconfig that carries an identity. Of a received one only these few fields are used: a
//! kubeconfig can name programs to run and files to read.

use http::{Uri, uri::Scheme};
use serde_json::{Value, json};
use tombolo_api::{ClusterName, auth::Confidential, is_dns_label};

/// The fields of a kubeconfig that an identity needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// URL of the API server.
    pub server: String,
    /// CA certificates of the API server, in base64 of PEM. `None`: those of the system.
    pub ca: Option<String>,
    /// The tenant namespace in that cluster.
    pub namespace: String,
    /// Credentials of the identity.
    pub credentials: Credentials,
}

/// Credentials of an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A token of a service account.
    Token(Confidential),
    /// A certificate.
    Certificate {
        /// The certificate, in base64 of PEM.
        certificate: String,
        /// Its private key, in base64 of PEM. `None` in transit: the key never leaves the cluster
        /// that made it.
        key: Option<Confidential>,
    },
}

impl Credentials {
    /// Form of the identity, for messages.
    pub fn form(&self) -> &'static str {
        match self {
            Self::Token(_) => "token",
            Self::Certificate { .. } => "certificate",
        }
    }
}

/// A kubeconfig that lacks a field of [`Access`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kubeconfig has no {0}")]
pub struct Incomplete(&'static str);

impl Access {
    /// Writes a kubeconfig, in JSON, which is valid YAML.
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

/// Whether a URL is https with a host, an optional port and no user.
fn is_https(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    let (Some(host), Some(authority)) = (url.host(), url.authority()) else { return false };
    let expected = match url.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    url.scheme() == Some(&Scheme::HTTPS) && !host.is_empty() && authority.as_str() == expected
}

/// Maximum length of a namespace name.
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
    fn an_access_survives_a_round_trip() {
        assert_eq!(Access::read(&value(&access())), Ok(access()));
        let plain = Access { ca: None, ..access() };
        assert_eq!(Access::read(&value(&plain)), Ok(plain));
    }

    #[test]
    fn a_certificate_is_sent_without_its_key_and_stored_with_it() {
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
    fn programs_and_files_in_a_kubeconfig_are_ignored() {
        let mut kubeconfig = value(&access());
        kubeconfig["users"][0]["user"]["exec"] = json!({ "command": "sh" });
        kubeconfig["clusters"][0]["cluster"]["proxy-url"] = "http://evil".into();
        let again = Access::read(&kubeconfig).unwrap();
        assert_eq!(value(&again), value(&access()));
    }

    #[test]
    fn missing_fields_are_named() {
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
