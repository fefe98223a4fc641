//! As much of an API server as a gateway asks for: objects that can be read, listed and written.
//! Watches never tell anything.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tombolo_core::plan::gateway::Peer;
use tombolo_runtime::settings::Settings;

use super::Cluster;

/// The objects, by the plural of their kind and their name.
#[derive(Clone, Default)]
pub struct ApiServer(Arc<Mutex<BTreeMap<(String, String), Value>>>);

impl ApiServer {
    /// One that has what a cluster's gateway needs.
    pub fn of(cluster: &Cluster) -> Self {
        let server = Self::default();
        let key = BASE64_STANDARD.encode(cluster.key.expose());
        server.put("secrets", "liqo-gateway-key", json!({ "data": { "privateKey": key } }));
        server.put("clusterconfigs", "cluster", json!({ "spec": {} }));
        for (id, peer) in &cluster.peers {
            let name = id.to_string();
            server.put("tunnelendpoints", &name, tunnel_endpoint(&name, peer));
            let spec = json!({ "clusterID": id, "clusterMappings": by_own_address(peer) });
            server.put("natmappings", &name, json!({ "spec": spec }));
        }
        server
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let answer = move |request| server.clone().answer(request);
        Client::new(tower::service_fn(answer), "liqo")
    }

    pub fn put(&self, plural: &str, name: &str, mut object: Value) {
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = "liqo".into();
        self.0.lock().unwrap().insert((plural.into(), name.into()), object);
    }

    pub fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.0.lock().unwrap().get(&(plural.into(), name.into())).cloned()
    }

    /// Waits until an object is as it should be.
    pub async fn until(&self, plural: &str, name: &str, is_so: impl Fn(&Value) -> bool) {
        while !self.get(plural, name).is_some_and(|object| is_so(&object)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let (head, body) = request.into_parts();
        let query = head.uri.query().unwrap_or_default();
        if query.contains("watch=true") {
            std::future::pending::<()>().await;
        }
        let path: Vec<_> = head.uri.path().split('/').skip(1).collect();
        let path = if path[0] == "api" { &path[2..] } else { &path[3..] };
        let path = if path[0] == "namespaces" { &path[2..] } else { path };
        let body: Value =
            serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
        let answer = match (head.method, path) {
            (Method::GET, [plural]) => Some(self.list(plural, query)),
            (Method::GET, [plural, name]) => self.get(plural, name),
            (Method::POST, [plural]) => {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                Some(self.write(plural, &name, &body))
            }
            (Method::PUT, [plural, name]) => {
                self.put(plural, name, body);
                self.get(plural, name)
            }
            (Method::PATCH, [plural, name, ..]) => Some(self.write(plural, name, &body)),
            _ => None,
        };
        let (status, answer) = match answer {
            Some(answer) => (StatusCode::OK, answer),
            None => (StatusCode::NOT_FOUND, not_found()),
        };
        let body = Body::from(answer.to_string().into_bytes());
        Ok(Response::builder().status(status).body(body).unwrap())
    }

    fn list(&self, plural: &str, query: &str) -> Value {
        let objects = self.0.lock().unwrap();
        let items = objects.iter().filter(|((kind, name), _)| {
            kind == plural && (!query.contains("metadata.name") || query.contains(name.as_str()))
        });
        let items: Vec<_> = items.map(|(_, object)| object.clone()).collect();
        json!({ "metadata": { "resourceVersion": "1" }, "items": items })
    }

    fn write(&self, plural: &str, name: &str, fields: &Value) -> Value {
        let mut object = self.get(plural, name).unwrap_or_default();
        merge(&mut object, fields);
        self.put(plural, name, object.clone());
        object
    }
}

fn not_found() -> Value {
    json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 })
}

/// What a pod of the cluster's gateway is told.
pub fn settings(cluster: &Cluster) -> Settings {
    Settings {
        cluster_id: "here".parse().unwrap(),
        cluster_name: "here".parse().unwrap(),
        api_server_url: "https://127.0.0.1:6443".into(),
        pod_cidr: "10.244.0.0/16".parse().unwrap(),
        service_cidr: "10.96.0.0/16".parse().unwrap(),
        pod_name: "gateway-1".into(),
        pod_ip: cluster.nodes[0].address.into(),
        node_name: "node-1".into(),
        host_ip: cluster.nodes[0].address.into(),
    }
}

fn tunnel_endpoint(id: &str, peer: &Peer) -> Value {
    let networks = peer.networks;
    json!({
        "spec": {
            "clusterID": id,
            "podCIDR": networks.remote_pod,
            "externalCIDR": networks.remote_external,
            "endpointIP": peer.endpoint.ip(),
            "backendType": "wireguard",
            "backend_config": {
                "publicKey": BASE64_STANDARD.encode(peer.public_key.0),
                "port": peer.endpoint.port().to_string(),
            },
        },
        "status": {
            "localPodCIDR": networks.local_pod,
            "localNATPodCIDR": networks.their_name_for_pods,
            "remoteNATPodCIDR": networks.our_name_for_pods,
            "localExternalCIDR": networks.local_external,
            "localNATExternalCIDR": networks.their_name_for_external,
            "remoteNATExternalCIDR": networks.our_name_for_external,
        },
    })
}

fn by_own_address(peer: &Peer) -> BTreeMap<String, String> {
    peer.mappings.iter().map(|(name, own)| (own.to_string(), name.to_string())).collect()
}

fn merge(into: &mut Value, fields: &Value) {
    match (into, fields) {
        (Value::Object(into), Value::Object(fields)) => {
            for (key, value) in fields {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, fields) => *into = fields.clone(),
    }
}
