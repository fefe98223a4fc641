//! Well-known names, labels and annotations.

use crate::{ClusterId, ClusterName};

/// Namespace of the components and of objects that belong to no single peer.
pub const NAMESPACE: &str = "liqo";

/// Secret, in [`NAMESPACE`], with the token that other clusters have to present.
pub const AUTH_TOKEN_SECRET: &str = "auth-token";

/// Key of the token in [`AUTH_TOKEN_SECRET`] and in Secrets with [`AUTH_TOKEN_LABEL`].
pub const AUTH_TOKEN_KEY: &str = "token";

/// Label of a Secret with the token to present to the cluster in [`CLUSTER_ID_LABEL`]. Its value is
/// empty.
pub const AUTH_TOKEN_LABEL: &str = "discovery.liqo.io/auth-token";

/// Label with the id of the cluster that an object refers to.
pub const CLUSTER_ID_LABEL: &str = "discovery.liqo.io/cluster-id";

/// Label of a ForeignCluster: how it was discovered, a
/// [`DiscoveryType`](crate::discovery::DiscoveryType).
pub const DISCOVERY_TYPE_LABEL: &str = "discovery.liqo.io/discovery-type";

/// Annotation of a ForeignCluster: time of its last discovery, in RFC 3339 format.
pub const LAST_UPDATE_ANNOTATION: &str = "discovery.liqo.io/last-update-time";

/// Annotation of a ForeignCluster: time of its first discovery, in RFC 3339 format.
pub const FOUND_ANNOTATION: &str = "discovery.liqo.io/found-time";

/// Annotation of a ForeignCluster: source and fingerprint of the pinned certificate. If the
/// fingerprint in the spec differs, a user has set it.
pub const PINNED_ANNOTATION: &str = "discovery.liqo.io/pinned-by";

/// Annotation of a tenant namespace: expiry of the identity of a cluster that is not discovered any
/// more, in RFC 3339 format.
pub const KEPT_UNTIL_ANNOTATION: &str = "discovery.liqo.io/identity-kept-until";

/// Finalizer of objects that need cleanup after their deletion.
pub const FINALIZER: &str = "liqo.io/finalizer";

/// Name of the one ClusterConfig.
pub const CLUSTER_CONFIG: &str = "cluster";

/// Name of the one NamespaceOffloading in a namespace.
pub const NAMESPACE_OFFLOADING: &str = "offloading";

/// Label of a namespace, with the value [`ENABLED`]: the quick way to offload it, with defaults.
pub const ENABLED_LABEL: &str = "liqo.io/enabled";

/// Value of [`ENABLED_LABEL`].
pub const ENABLED: &str = "true";

/// Label of a virtual node, with the value [`VIRTUAL_NODE`].
pub const TYPE_LABEL: &str = "liqo.io/type";

/// Value of [`TYPE_LABEL`].
pub const VIRTUAL_NODE: &str = "virtual-node";

/// Key of the taint of virtual nodes, with the value `true` and the effect `NoExecute`: only pods
/// of offloaded namespaces tolerate it.
pub const VIRTUAL_NODE_TAINT: &str = "virtual-node.liqo.io/not-allowed";

/// Label of an offloaded pod in the remote cluster, with the value [`SHADOW_POD`].
pub const MANAGED_BY_LABEL: &str = "liqo.io/managed-by";

/// Value of [`MANAGED_BY_LABEL`].
pub const SHADOW_POD: &str = "shadowpod";

/// Label of an EndpointSlice: its manager. Reflected slices have the value
/// [`ENDPOINT_SLICE_REFLECTION`], so that the controllers of Kubernetes ignore them.
pub const ENDPOINT_SLICE_MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";

/// Value of [`ENDPOINT_SLICE_MANAGED_BY_LABEL`].
pub const ENDPOINT_SLICE_REFLECTION: &str = "endpointslice.reflection.liqo.io";

/// Label of an EndpointSlice and of a ShadowEndpointSlice: name of its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Label of reflected objects: id of the origin cluster.
pub const ORIGIN_LABEL: &str = "virtualkubelet.liqo.io/origin";

/// Label of reflected objects: id of the destination cluster.
pub const DESTINATION_LABEL: &str = "virtualkubelet.liqo.io/destination";

/// Environment variable in every container of an offloaded pod: id of the cluster in which it runs.
pub const CLUSTER_ID_ENV: &str = "LIQO_CLUSTER_ID";

/// Service, in [`NAMESPACE`], of the address service ([`crate::ipam`]).
pub const IPAM_SERVICE: &str = "liqo-network-manager";

/// Port of [`IPAM_SERVICE`].
pub const IPAM_PORT: u16 = 6000;

/// Label of the leader among the pods of the controllers, with the value [`LEADER`]:
/// [`IPAM_SERVICE`] selects it.
pub const LEADER_LABEL: &str = "liqo.io/leader";

/// Value of [`LEADER_LABEL`].
pub const LEADER: &str = "true";

/// Label of a pod: its component, such as [`CONTROL_ACCOUNT`].
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/name";

/// Secret, in [`NAMESPACE`], with the CA of [`IPAM_SERVICE`] and its clients, if mTLS is enabled.
pub const IPAM_AUTHORITY_SECRET: &str = "liqo-ipam-ca";

/// Secret, in [`NAMESPACE`], with the certificate of [`IPAM_SERVICE`].
pub const IPAM_SERVER_SECRET: &str = "liqo-ipam-server";

/// Secret, in [`NAMESPACE`], with the certificate of the clients of [`IPAM_SERVICE`].
pub const IPAM_CLIENT_SECRET: &str = "liqo-ipam-client";

/// DNS-SD service type of the auth service, for discovery in the local network.
pub const MDNS_SERVICE: &str = "_liqo_auth._tcp.local";

/// Annotation of a ServiceExport: whether the service gets a clusterset IP.
pub const USE_CLUSTERSET_IP_ANNOTATION: &str = "lighthouse.submariner.io/use-clusterset-ip";

/// Annotation of a ServiceImport: id of the cluster that allocated its clusterset IP.
pub const CLUSTERSET_IP_ALLOCATED_BY_ANNOTATION: &str =
    "lighthouse.submariner.io/clusterset-ip-allocated-by";

/// Namespace of the identity requests that the auth service records, and of their responses.
pub const AUTH_NAMESPACE: &str = "liqo-auth";

/// ConfigMap, in [`NAMESPACE`], with name, id and settings of this cluster; created on
/// installation.
pub const CLUSTER_SETTINGS: &str = "liqo-cluster";

/// ConfigMap, in [`NAMESPACE`]: while it exists, agents and gateways remove their interfaces,
/// routes and rules from the nodes, and report in there.
pub const UNINSTALL: &str = "liqo-uninstall";

/// Secret, in a tenant namespace, with the identity issued by that peer.
pub const IDENTITY_SECRET: &str = "liqo-identity";

/// Key of the kubeconfig in [`IDENTITY_SECRET`].
pub const IDENTITY_KUBECONFIG_KEY: &str = "kubeconfig";

/// Key of the nonce in [`IDENTITY_SECRET`]. It proves to the peer that a request is from the same
/// cluster.
pub const IDENTITY_NONCE_KEY: &str = "nonce";

/// ServiceAccount, Role and RoleBinding, in a tenant namespace, of the peer's identity.
pub const TENANT_ACCOUNT: &str = "liqo-cluster";

/// Secret, in [`NAMESPACE`], with the certificate and the key of the auth service.
pub const AUTH_CERTIFICATE_SECRET: &str = "liqo-auth-cert";

/// Secret, in [`NAMESPACE`], with the key that nonces are derived from.
pub const NONCE_KEY_SECRET: &str = "liqo-nonce-key";

/// Annotation of [`AUTH_SERVICE`]: SHA-256 fingerprint of the auth service's certificate.
pub const FINGERPRINT_ANNOTATION: &str = "discovery.liqo.io/fingerprint";

/// Secret, in [`NAMESPACE`], with the generation of newly issued identities.
pub const GENERATION_SECRET: &str = "liqo-generation";

/// Key of the generation in [`GENERATION_SECRET`].
pub const GENERATION_KEY: &str = "generation";

/// Annotation of [`TENANT_ACCOUNT`]: the generation of the peer's identity.
pub const GENERATION_ANNOTATION: &str = "discovery.liqo.io/generation";

/// Annotation of [`AUTH_SERVICE`]: the configured URL at which other clusters reach it, if any.
pub const AUTH_URL_ANNOTATION: &str = "discovery.liqo.io/auth-url";

/// Label of a Secret, in [`AUTH_NAMESPACE`], that records an identity request.
pub const IDENTITY_RECORD_LABEL: &str = "discovery.liqo.io/identity";

/// Label of a tenant namespace, with the value `true`.
pub const TENANT_LABEL: &str = "liqo.io/tenant";

/// Label of objects that are replicated to another cluster: id of that cluster.
pub const REPLICATE_TO_LABEL: &str = "liqo.io/replicate-to";

/// Label of replicated copies: id of the origin cluster.
pub const REPLICATED_FROM_LABEL: &str = "liqo.io/replicated-from";

/// Finalizer of objects with a copy in another cluster.
pub const REPLICATOR_FINALIZER: &str = "liqo.io/replicator";

/// Finalizer of a ResourceOffer with a virtual node.
pub const KUBELET_FINALIZER: &str = "liqo.io/kubelet";

/// Label of a twin namespace: id of its home cluster.
pub const REMOTE_CLUSTER_ID_LABEL: &str = "liqo.io/remote-cluster-id";

/// Annotation of a twin namespace: name of the offloaded namespace in the home cluster.
pub const HOME_NAMESPACE_ANNOTATION: &str = "liqo.io/home-namespace";

/// Label of an offloaded namespace, with the value [`SCHEDULING`]: its pods pass the admission
/// webhook.
pub const SCHEDULING_LABEL: &str = "liqo.io/scheduling";

/// Value of [`SCHEDULING_LABEL`].
pub const SCHEDULING: &str = "enabled";

/// ClusterRole, bound in twin namespaces: rights of the home cluster during a peering.
pub const TWIN_ROLE: &str = "liqo-twin";

/// ClusterRole, bound in twin namespaces: rights of the home cluster after the end of a peering.
pub const ENDING_TWIN_ROLE: &str = "liqo-twin-ending";

/// ClusterRole, bound in twin namespaces: rights of the controllers.
pub const CONTROL_TWIN_ROLE: &str = "liqo-control-twin";

/// ClusterRole, bound in tenant namespaces: rights of the controllers.
pub const CONTROL_TENANT_ROLE: &str = "liqo-control-tenant";

/// ClusterRole, bound in tenant namespaces: rights of the virtual kubelet.
pub const KUBELET_TENANT_ROLE: &str = "liqo-kubelet-tenant";

/// ClusterRole, bound in offloaded namespaces: rights of the virtual kubelet.
pub const KUBELET_NAMESPACE_ROLE: &str = "liqo-kubelet-namespace";

/// Annotation of a ForeignCluster created for a ResourceRequest: UID of the request.
pub const REQUEST_ANNOTATION: &str = "discovery.liqo.io/request";

/// Annotation of a ForeignCluster created for a SearchDomain: DNS name that the domain lists.
pub const RECORD_ANNOTATION: &str = "discovery.liqo.io/record";

/// Annotation of a NamespaceOffloading created for [`ENABLED_LABEL`]: it is deleted with the label.
pub const MADE_FOR_ANNOTATION: &str = "offloading.liqo.io/made-for";

/// Annotation of reflected objects: digest of the state desired by the home cluster.
pub const FORGED_ANNOTATION: &str = "liqo.io/forged";

/// RoleBinding, in an offloaded namespace, that lets the virtual kubelet read the reflected
/// objects.
pub const KUBELET_ROLE_BINDING: &str = "liqo-kubelet";

/// ServiceAccount, in [`NAMESPACE`], of the controllers.
pub const CONTROL_ACCOUNT: &str = "liqo-control";

/// ServiceAccount, in [`NAMESPACE`], of the virtual kubelet.
pub const KUBELET_ACCOUNT: &str = "liqo-kubelet";

/// Secret, in [`NAMESPACE`], with the certificate of the admission webhook.
pub const WEBHOOK_CERTIFICATE: &str = "liqo-webhook-cert";

/// The MutatingWebhookConfiguration of the admission webhook.
pub const WEBHOOK_CONFIGURATION: &str = "liqo";

/// Service, in [`NAMESPACE`], of the auth service.
pub const AUTH_SERVICE: &str = "liqo-auth";

/// Service, in [`NAMESPACE`], of the admission webhook.
pub const WEBHOOK_SERVICE: &str = "liqo-webhook";

/// Lease, in [`NAMESPACE`], of the active gateway, with its addresses as annotations.
pub const GATEWAY_LEASE: &str = "liqo-gateway";

/// Annotation of [`GATEWAY_LEASE`]: address at which other clusters reach the gateway.
pub const GATEWAY_ENDPOINT_ANNOTATION: &str = "net.liqo.io/endpoint-ip";

/// Annotation of [`GATEWAY_LEASE`]: UDP port at which other clusters reach the gateway.
pub const GATEWAY_PORT_ANNOTATION: &str = "net.liqo.io/port";

/// Annotation of [`GATEWAY_LEASE`]: the gateway's WireGuard public key, in base64.
pub const GATEWAY_PUBLIC_KEY_ANNOTATION: &str = "net.liqo.io/public-key";

/// Annotation of [`GATEWAY_LEASE`]: address of the gateway's node.
pub const GATEWAY_NODE_IP_ANNOTATION: &str = "net.liqo.io/node-ip";

/// Secret, in [`NAMESPACE`], with the gateway's WireGuard private key.
pub const GATEWAY_KEY_SECRET: &str = "liqo-gateway-key";

/// UDP port of the gateway.
pub const GATEWAY_PORT: u16 = 51840;

/// Annotation of a ShadowPod and of its pod: UID of the offloaded pod in the home cluster.
pub const HOME_UID_ANNOTATION: &str = "liqo.io/home-uid";

/// Annotation of an offloaded pod, in JSON: UID of the remote pod whose status it shows, and the
/// restarts of each container before that pod.
pub const RESTARTS_ANNOTATION: &str = "liqo.io/restarts";

/// Annotation of a ShadowPod that is being deleted: grace period of its pod, in seconds.
pub const GRACE_PERIOD_ANNOTATION: &str = "liqo.io/grace-period-seconds";

/// Annotation of a ShadowPod: the reason why its pod can't be created.
pub const POD_FAILURE_ANNOTATION: &str = "liqo.io/pod-failure";

/// Annotation of a ShadowPod whose pod has terminated for good: its final phase.
pub const POD_FINISHED_ANNOTATION: &str = "liqo.io/pod-finished";

/// Annotation of the pod of a ShadowPod: digest of the ShadowPod that it was created from.
pub const SHADOW_DIGEST_ANNOTATION: &str = "liqo.io/shadow-digest";

/// DNS name of [`IPAM_SERVICE`].
pub fn ipam_host() -> String {
    format!("{IPAM_SERVICE}.{NAMESPACE}.svc")
}

/// Name of the virtual node of a cluster. `taken` returns whether another node has a name.
pub fn virtual_node(name: &ClusterName, id: &ClusterId, taken: impl Fn(&str) -> bool) -> String {
    let node = format!("liqo-{name}");
    if taken(&node) { format!("{node}-{}", id.short()) } else { node }
}

/// Name of the tenant namespace for a peering with this cluster.
pub fn tenant_namespace(name: &ClusterName) -> String {
    format!("liqo-tenant-{name}")
}

/// Name of the twin of a namespace that is offloaded with `DefaultName`.
pub fn default_remote_namespace(namespace: &str, home: &ClusterName) -> String {
    format!("{namespace}-{home}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_node_is_named_after_its_cluster() {
        let name = "rome".parse().unwrap();
        let id = "9f0f1f3e-9f2c-4b6a-8d7e-0c4a7b0f2c11".parse().unwrap();
        assert_eq!(virtual_node(&name, &id, |_| false), "liqo-rome");
        let taken = |node: &str| node == "liqo-rome";
        assert_eq!(virtual_node(&name, &id, taken), "liqo-rome-9f0f1");
    }

    #[test]
    fn the_longest_cluster_name_makes_valid_dns_labels() {
        let name: ClusterName = "n".repeat(ClusterName::MAX_LEN).parse().unwrap();
        let id = "i".repeat(ClusterId::MAX_LEN).parse().unwrap();
        assert!(virtual_node(&name, &id, |_| true).len() <= 63);
        assert!(tenant_namespace(&name).len() + "-12345".len() <= 63);
    }

    #[test]
    fn namespaces_are_named_after_the_cluster() {
        let rome = "rome".parse().unwrap();
        assert_eq!(tenant_namespace(&rome), "liqo-tenant-rome");
        assert_eq!(default_remote_namespace("shop", &rome), "shop-rome");
    }
}
