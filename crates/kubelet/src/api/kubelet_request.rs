//! Requests to the kubelet API, translated to requests to the remote API server.

/// A request to the kubelet API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KubeletRequest {
    /// The health check.
    Health,
    /// The pods of the node.
    Pods,
    /// A subresource of a pod.
    Pod(Call),
}

/// A request for a subresource of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub namespace: String,
    pub pod: String,
    subresource: &'static str,
    query: String,
}

/// Query parameters of container logs.
const LOG_OPTIONS: [&str; 8] = [
    "follow",
    "previous",
    "timestamps",
    "sinceSeconds",
    "sinceTime",
    "tailLines",
    "limitBytes",
    "stream",
];

/// Query parameters of streams: of the kubelet API, and of the API server.
const STREAMS: [(&str, &str); 4] =
    [("input", "stdin"), ("output", "stdout"), ("error", "stderr"), ("tty", "tty")];

impl KubeletRequest {
    pub(super) fn parse(path: &str, query: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts[..] {
            ["healthz"] => Some(Self::Health),
            ["pods"] => Some(Self::Pods),
            ["containerLogs", namespace, pod, container] => {
                Call::request("log", namespace, pod, Some(container), log_query(query))
            }
            [kind @ ("exec" | "attach"), namespace, pod, container]
            | [kind @ ("exec" | "attach"), namespace, pod, _, container] => {
                let kind = if kind == "exec" { "exec" } else { "attach" };
                Call::request(kind, namespace, pod, Some(container), stream_query(query))
            }
            ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
                Call::request("portforward", namespace, pod, None, port_query(query))
            }
            _ => None,
        }
    }
}

impl Call {
    fn request(
        subresource: &'static str,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        mut query: Vec<String>,
    ) -> Option<KubeletRequest> {
        if ![Some(namespace), Some(pod), container].into_iter().flatten().all(is_name) {
            return None;
        }
        if let Some(container) = container {
            query.insert(0, format!("container={container}"));
        }
        Some(KubeletRequest::Pod(Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            subresource,
            query: query.join("&"),
        }))
    }

    /// Path and query of the request to the remote API server. `namespace` is the twin namespace.
    pub(super) fn remote_path(&self, namespace: &str) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{}/{}", self.pod, self.subresource);
        if self.query.is_empty() { path } else { format!("{path}?{}", self.query) }
    }
}

/// Names are not escaped in the path.
fn is_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && text.bytes().any(|b| b != b'.')
}

/// Names and values of a query, still percent-encoded.
fn options(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query
        .split('&')
        .filter(|option| !option.is_empty())
        .map(|option| option.split_once('=').unwrap_or((option, "")))
}

fn log_query(query: &str) -> Vec<String> {
    options(query)
        .filter(|(name, _)| LOG_OPTIONS.contains(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn stream_query(query: &str) -> Vec<String> {
    options(query)
        .filter_map(|(name, value)| {
            if name == "command" {
                return Some(format!("command={value}"));
            }
            let (_, there) =
                STREAMS.iter().find(|(here, there)| *here == name || *there == name)?;
            Some(format!("{there}={}", matches!(value, "1" | "true")))
        })
        .collect()
}

fn port_query(query: &str) -> Vec<String> {
    options(query)
        .filter(|(name, _)| matches!(*name, "port" | "ports"))
        .map(|(_, value)| format!("ports={value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(path: &str, query: &str) -> Option<String> {
        match KubeletRequest::parse(path, query)? {
            KubeletRequest::Pod(call) => Some(call.remote_path("shop-rome")),
            _ => None,
        }
    }

    #[test]
    fn log_requests_keep_their_options() {
        assert_eq!(
            translated("/containerLogs/shop/web-0/web", "follow=true&tailLines=5&x=1").unwrap(),
            "/api/v1/namespaces/shop-rome/pods/web-0/log?container=web&follow=true&tailLines=5"
        );
    }

    #[test]
    fn stream_parameters_are_renamed() {
        let expected = "/api/v1/namespaces/shop-rome/pods/web/exec?container=web&command=a%20b\
                        &command=c&stdin=true&stdout=true&tty=false";
        let query = "command=a%20b&command=c&input=1&output=1&tty=0";
        assert_eq!(translated("/exec/shop/web/web", query).unwrap(), expected);
        assert_eq!(translated("/exec/shop/web/0b2f/web", query).unwrap(), expected);
        assert!(translated("/attach/shop/web/web", "").unwrap().ends_with("/attach?container=web"));
    }

    #[test]
    fn port_forward_works_with_and_without_a_port_parameter() {
        let path = "/api/v1/namespaces/shop-rome/pods/web/portforward";
        assert_eq!(translated("/portForward/shop/web", "").unwrap(), path);
        assert_eq!(
            translated("/portForward/shop/web", "port=80").unwrap(),
            format!("{path}?ports=80")
        );
    }

    #[test]
    fn other_requests_are_rejected() {
        for path in
            ["/", "/run/a/b/c", "/containerLogs/a/b", "/exec/a/..%2fb/c", "/exec/a/../c", "/logs/x"]
        {
            assert_eq!(KubeletRequest::parse(path, ""), None, "{path}");
        }
        assert_eq!(KubeletRequest::parse("/pods/", ""), Some(KubeletRequest::Pods));
    }
}
