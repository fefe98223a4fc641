//! Assertions for accepted external input, shared by the fuzz targets: the API server would accept
//! the resulting objects, and their fields are well-formed.

use http::Uri;
use tombolo_api::{ClusterIdentity, discovery::ForeignCluster, names::LAST_UPDATE_ANNOTATION};

/// Asserts that the API server would accept the ForeignCluster.
#[track_caller]
pub fn is_valid_entry(entry: &ForeignCluster) {
    let name = entry.metadata.name.as_deref().unwrap_or_default();
    assert!(is_label(name, 63), "{name:?} is not an object name");
    is_auth_url(&entry.spec.auth_url);
    assert!(entry.spec.ttl.is_some_and(|ttl| (1..=0x7fff_ffff).contains(&ttl)));
    if let Some(cluster) = &entry.spec.cluster_identity {
        is_identity(cluster);
    }
    for (key, value) in entry.metadata.labels.iter().flatten() {
        assert!(is_label_value(value), "{value:?} is not a value of the label {key}");
    }
    let annotations = entry.metadata.annotations.as_ref().expect("annotations");
    assert!(annotations[LAST_UPDATE_ANNOTATION].parse::<jiff::Timestamp>().is_ok());
    let json = serde_json::to_string(entry).expect("JSON of an entry");
    let again: ForeignCluster = serde_json::from_str(&json).expect("an entry of its JSON");
    assert_eq!(again, *entry);
}

/// Asserts that id and name are DNS labels, short enough for the names derived from them.
#[track_caller]
pub fn is_identity(cluster: &ClusterIdentity) {
    let (id, name) = (cluster.cluster_id.as_str(), cluster.cluster_name.as_str());
    assert!(is_label(id, 63), "{id:?} is not a cluster id");
    assert!(is_label(name, 45), "{name:?} is not a cluster name");
}

/// Asserts the CRD's rules for the URL of an auth service.
#[track_caller]
pub fn is_auth_url(url: &str) {
    assert!(url.len() <= 1024, "{} characters", url.len());
    let uri: Uri = url.parse().unwrap_or_else(|error| panic!("{url:?}: {error}"));
    assert_eq!(uri.scheme_str(), Some("https"), "{url:?}");
    assert!(uri.port_u16().is_none_or(|port| port > 0), "{url:?}");
    assert!(!url.contains(['@', '?', '#']), "{url:?}");
    let host = uri.host().unwrap_or_default();
    assert!(!host.is_empty(), "{url:?}");
    if let Some(address) = host.strip_prefix('[') {
        let address = address.trim_end_matches(']').parse::<std::net::Ipv6Addr>();
        assert!(address.is_ok(), "{url:?}");
    } else if host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        assert!(host.parse::<std::net::Ipv4Addr>().is_ok(), "{url:?}");
    }
}

/// Whether the text is a DNS label of at most `max` characters, by the rules of Kubernetes.
pub fn is_label(text: &str, max: usize) -> bool {
    let is_inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty()
        && text.len() <= max
        && text.chars().all(is_inside)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_label_value(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    text.is_empty()
        || text.len() <= 63
            && text.chars().all(|c| is_end(c) || "-_.".contains(c))
            && text.starts_with(is_end)
            && text.ends_with(is_end)
}
