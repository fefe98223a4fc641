//! An Ingress controller on a node with the defaults of ingress-nginx: plain HTTP to the backend
//! unless an annotation selects HTTPS, no verification of the backend's certificate, and its own
//! certificate where that in the Secret does not name the host.

use k8s_openapi::api::core::v1::Secret;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::server::ParsedCertificate;
use serde_json::{Value, json};
use tombolo_testbed::{Cluster, Node};

use crate::common::{get, list};
use crate::nginx::Nginx;

const CLASS: &str = "nginx";
const PROTOCOL: &str = "nginx.ingress.kubernetes.io/backend-protocol";

pub struct Controller<'a> {
    cluster: &'a Cluster,
    node: &'a Node,
    pub nginx: Nginx,
    own: CertifiedKey<KeyPair>,
}

impl<'a> Controller<'a> {
    /// The controller of the default class, which serves no Ingress yet.
    pub async fn start(cluster: &'a Cluster, node: &'a Node) -> Self {
        let class = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IngressClass",
            "metadata": {
                "name": CLASS,
                "annotations": { "ingressclass.kubernetes.io/is-default-class": "true" },
            },
            "spec": { "controller": "k8s.io/ingress-nginx" },
        });
        cluster.apply(&class.to_string()).await.expect("a class of Ingresses");
        let own = generate_simple_self_signed(vec!["ingress.local".to_owned()]).expect("a pair");
        Self { cluster, node, nginx: Nginx::new(node.network_namespace()), own }
    }

    /// Serves the Ingress of the auth service in its current state.
    pub async fn sync(&mut self) {
        let ingress = get(self.cluster, &["ingress", "-n", "liqo", "liqo-auth"]).await;
        assert_eq!(ingress["spec"]["ingressClassName"], CLASS, "it is not for this controller");
        let rule = &ingress["spec"]["rules"][0];
        let host = text(&rule["host"]);
        let tls = &ingress["spec"]["tls"][0];
        assert_eq!(tls["hosts"], json!([host]));
        let secret = get(self.cluster, &["secret", "-n", "liqo", text(&tls["secretName"])]).await;
        let secret: Secret = serde_json::from_value(secret).expect("a Secret");
        let secret = secret.data.expect("something is in it");
        let (certificate, key) = (&secret["tls.crt"].0, &secret["tls.key"].0);
        self.nginx.file("own.crt", self.own.cert.pem());
        self.nginx.file("own.key", self.own.signing_key.serialize_pem());
        self.nginx.file("host.crt", certificate);
        self.nginx.file("host.key", key);
        let shown = if names(certificate, host) { "host" } else { "own" };
        let path = &rule["http"]["paths"][0];
        let backend = &path["backend"]["service"];
        let (service, port) = (text(&backend["name"]), text(&backend["port"]["name"]));
        let endpoints = endpoints(self.cluster, service, port).await;
        let scheme = match &ingress["metadata"]["annotations"][PROTOCOL] {
            Value::Null => "http",
            protocol if protocol == "HTTPS" => "https",
            other => panic!("{PROTOCOL}: {other}"),
        };
        let (upstream, pass) = match &endpoints[..] {
            [] => (String::new(), "return 503;".to_owned()),
            some => (upstream(some), format!("proxy_pass {scheme}://endpoints;")),
        };
        let (address, path) = (self.node.address(), text(&path["path"]));
        self.nginx.run(&format!(
            "http {{
    log_format request '$remote_addr asked $ssl_server_name: $request: $status from $upstream_addr';
    access_log access request;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    client_max_body_size 1m;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache shared:SSL:10m;
    ssl_session_tickets off;
    ssl_buffer_size 4k;
    {upstream}
    server {{
        listen {address}:443 ssl http2 default_server;
        ssl_certificate own.crt;
        ssl_certificate_key own.key;
        return 404;
    }}
    server {{
        listen {address}:443 ssl http2;
        server_name {host};
        ssl_certificate {shown}.crt;
        ssl_certificate_key {shown}.key;
        location {path} {{
            proxy_http_version 1.1;
            proxy_set_header Connection '';
            proxy_set_header Host $host;
            proxy_set_header X-Request-ID $request_id;
            proxy_set_header X-Real-IP $remote_addr;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $host;
            proxy_set_header X-Forwarded-Port $server_port;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Scheme $scheme;
            proxy_set_header X-Scheme $scheme;
            proxy_connect_timeout 5s;
            proxy_buffering off;
            proxy_next_upstream_tries 3;
            {pass}
        }}
    }}
}}
"
        ));
    }
}

/// Addresses and ports of the ready pods of a Service.
pub async fn endpoints(cluster: &Cluster, service: &str, port: &str) -> Vec<String> {
    let of = format!("kubernetes.io/service-name={service}");
    let slices = list(cluster, &["endpointslices", "-n", "liqo", "-l", &of]).await;
    let mut found = Vec::new();
    for slice in &slices {
        // Without pods there are no ports.
        let ports = slice["ports"].as_array().into_iter().flatten();
        let numbers = ports.filter(|it| it["name"] == port).map(|it| &it["port"]);
        for number in numbers {
            let all = slice["endpoints"].as_array().into_iter().flatten();
            let ready = all.filter(|it| it["conditions"]["ready"] == true);
            found.extend(ready.map(|it| format!("{}:{number}", text(&it["addresses"][0]))));
        }
    }
    found
}

fn upstream(endpoints: &[String]) -> String {
    let servers: String = endpoints.iter().map(|it| format!("server {it}; ")).collect();
    format!(
        "upstream endpoints {{
        {servers}
        keepalive 320;
        keepalive_requests 10000;
        keepalive_timeout 60s;
    }}"
    )
}

/// Whether a certificate is valid for this host.
fn names(pem: &[u8], host: &str) -> bool {
    let certificate = CertificateDer::from_pem_slice(pem).expect("a certificate");
    let parsed = ParsedCertificate::try_from(&certificate).expect("a certificate");
    let host = ServerName::try_from(host).expect("a name");
    verify_server_name(&parsed, &host).is_ok()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string"))
}
