//! The kubeconfig by which an identity is handed over.

use serde_json::json;
use tombolo_api::{ClusterName, auth::Confidential};

/// What it takes to use an identity.
#[derive(Clone, Debug)]
pub struct Access<'a> {
    /// The cluster that gives it.
    pub cluster: &'a ClusterName,
    /// URL of its API server.
    pub server: &'a str,
    /// Certificates, in PEM, by which to trust the API server. `None`: those of the system.
    pub ca: Option<&'a str>,
    /// The tenant namespace there.
    pub namespace: &'a str,
    /// The token.
    pub token: &'a Confidential,
}

/// A kubeconfig, in JSON, which is YAML as well. The certificates are in the base64 that the
/// caller makes of them.
pub fn kubeconfig(access: &Access<'_>, base64: impl Fn(&[u8]) -> String) -> Confidential {
    let name = access.cluster.as_str();
    let mut cluster = json!({ "server": access.server });
    if let Some(ca) = access.ca {
        cluster["certificate-authority-data"] = base64(ca.as_bytes()).into();
    }
    let context = json!({ "cluster": name, "user": name, "namespace": access.namespace });
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": cluster }],
        "users": [{ "name": name, "user": { "token": access.token.reveal() } }],
        "contexts": [{ "name": name, "context": context }],
        "current-context": name,
    });
    config.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_client_needs_is_in_it() {
        let milan = "milan".parse().unwrap();
        let access = Access {
            cluster: &milan,
            server: "https://10.0.0.5:6443",
            ca: Some("PEM"),
            namespace: "liqo-tenant-rome",
            token: &"t0ken".to_owned().into(),
        };
        let text = kubeconfig(&access, |bytes| format!("<{}>", bytes.len()));
        let value: serde_json::Value = serde_json::from_str(text.reveal()).unwrap();
        assert_eq!(value["clusters"][0]["cluster"]["server"], "https://10.0.0.5:6443");
        assert_eq!(value["clusters"][0]["cluster"]["certificate-authority-data"], "<3>");
        assert_eq!(value["contexts"][0]["context"]["namespace"], "liqo-tenant-rome");
        assert_eq!(value["users"][0]["user"]["token"], "t0ken");
        assert_eq!(value["current-context"], "milan");
    }

    #[test]
    fn without_certificates_those_of_the_system_count() {
        let access = Access {
            cluster: &"milan".parse().unwrap(),
            server: "https://api.example.com",
            ca: None,
            namespace: "x",
            token: &Confidential::default(),
        };
        assert!(!kubeconfig(&access, |_| String::new()).reveal().contains("certificate-authority"));
    }
}
