//! Names that clusters, components and users agree on.

use crate::{ClusterId, ClusterName};

/// Namespace of the components and of what belongs to no single peer.
pub const NAMESPACE: &str = "liqo";

/// Secret, in [`NAMESPACE`], with the token that other clusters have to show.
pub const AUTH_TOKEN_SECRET: &str = "auth-token";

/// Key of the token in [`AUTH_TOKEN_SECRET`] and in Secrets with [`AUTH_TOKEN_LABEL`].
pub const AUTH_TOKEN_KEY: &str = "token";

/// Label of a Secret that holds the token to show to another cluster. Its value is empty; which
/// cluster, [`CLUSTER_ID_LABEL`] says.
pub const AUTH_TOKEN_LABEL: &str = "discovery.liqo.io/auth-token";

/// Label with the id of the cluster that an object is about.
pub const CLUSTER_ID_LABEL: &str = "discovery.liqo.io/cluster-id";

/// Label of a ForeignCluster: how it was discovered, a
/// [`DiscoveryType`](crate::discovery::DiscoveryType).
pub const DISCOVERY_TYPE_LABEL: &str = "discovery.liqo.io/discovery-type";

/// Annotation of a ForeignCluster: when discovery last saw it, as RFC 3339 has it.
pub const LAST_UPDATE_ANNOTATION: &str = "discovery.liqo.io/last-update-time";

/// Annotation of a ForeignCluster: when discovery saw it first, as RFC 3339 has it.
pub const FOUND_ANNOTATION: &str = "discovery.liqo.io/found-time";

/// Annotation of a ForeignCluster: who said which certificate its auth service has to show, and
/// which that was. Where it is another one than in the spec, somebody has set that by hand.
pub const PINNED_ANNOTATION: &str = "discovery.liqo.io/pinned-by";

/// Annotation of a tenant namespace: until when the identity of a cluster that is not to be found
/// any more is kept there, as RFC 3339 has it.
pub const KEPT_UNTIL_ANNOTATION: &str = "discovery.liqo.io/identity-kept-until";

/// Finalizer of objects whose deletion has to be cleaned up after.
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
/// that are to be offloaded tolerate it.
pub const VIRTUAL_NODE_TAINT: &str = "virtual-node.liqo.io/not-allowed";

/// Label of an offloaded pod in the cluster that hosts it, with the value [`SHADOW_POD`].
pub const MANAGED_BY_LABEL: &str = "liqo.io/managed-by";

/// Value of [`MANAGED_BY_LABEL`].
pub const SHADOW_POD: &str = "shadowpod";

/// Label of an EndpointSlice: who manages it. Reflected ones have the value
/// [`ENDPOINT_SLICE_REFLECTION`], so that Kubernetes leaves them alone.
pub const ENDPOINT_SLICE_MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";

/// Value of [`ENDPOINT_SLICE_MANAGED_BY_LABEL`].
pub const ENDPOINT_SLICE_REFLECTION: &str = "endpointslice.reflection.liqo.io";

/// Label of an EndpointSlice and of a ShadowEndpointSlice: the Service that it belongs to.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Label of what is reflected: id of the cluster that it comes from.
pub const ORIGIN_LABEL: &str = "virtualkubelet.liqo.io/origin";

/// Label of what is reflected: id of the cluster that it goes to.
pub const DESTINATION_LABEL: &str = "virtualkubelet.liqo.io/destination";

/// Variable in every container of an offloaded pod: id of the cluster that it runs in.
pub const CLUSTER_ID_ENV: &str = "LIQO_CLUSTER_ID";

/// Service, in [`NAMESPACE`], of the address service ([`crate::ipam`]).
pub const IPAM_SERVICE: &str = "liqo-network-manager";

/// Port of [`IPAM_SERVICE`].
pub const IPAM_PORT: u16 = 6000;

/// Label of the one pod of the controllers that leads, with the value [`LEADER`]: [`IPAM_SERVICE`]
/// selects it.
pub const LEADER_LABEL: &str = "liqo.io/leader";

/// Value of [`LEADER_LABEL`].
pub const LEADER: &str = "true";

/// Label of a pod: the component that it runs, such as [`CONTROL_ACCOUNT`].
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/name";

/// Secret, in [`NAMESPACE`], with the authority whose certificates [`IPAM_SERVICE`] and its clients
/// show each other, if they do.
pub const IPAM_AUTHORITY_SECRET: &str = "liqo-ipam-ca";

/// Secret, in [`NAMESPACE`], with the certificate of [`IPAM_SERVICE`].
pub const IPAM_SERVER_SECRET: &str = "liqo-ipam-server";

/// Secret, in [`NAMESPACE`], with the certificate of the clients of [`IPAM_SERVICE`].
pub const IPAM_CLIENT_SECRET: &str = "liqo-ipam-client";

/// DNS-SD service by which clusters of a local network find each other's auth service.
pub const MDNS_SERVICE: &str = "_liqo_auth._tcp.local";

/// Annotation of a ServiceExport: whether the service gets a clusterset IP.
pub const USE_CLUSTERSET_IP_ANNOTATION: &str = "lighthouse.submariner.io/use-clusterset-ip";

/// Annotation of a ServiceImport: id of the cluster that allocated its clusterset IP.
pub const CLUSTERSET_IP_ALLOCATED_BY_ANNOTATION: &str =
    "lighthouse.submariner.io/clusterset-ip-allocated-by";

/// Namespace in which the auth service records who asks for an identity, and finds the answers.
pub const AUTH_NAMESPACE: &str = "liqo-auth";

/// ConfigMap, in [`NAMESPACE`], that says which cluster this is; made when Tombolo is installed.
pub const CLUSTER_SETTINGS: &str = "liqo-cluster";

/// ConfigMap, in [`NAMESPACE`]: while it is there, agents and gateways remove what they made on
/// their nodes, and report it in there.
pub const UNINSTALL: &str = "liqo-uninstall";

/// Secret, in a tenant namespace, with the identity to use at that peer.
pub const IDENTITY_SECRET: &str = "liqo-identity";

/// Key of the kubeconfig in [`IDENTITY_SECRET`].
pub const IDENTITY_KUBECONFIG_KEY: &str = "kubeconfig";

/// Key, in [`IDENTITY_SECRET`], of what proves to that peer that a request is from the same cluster.
pub const IDENTITY_NONCE_KEY: &str = "nonce";

/// ServiceAccount, Role and RoleBinding, in a tenant namespace, of the peer's identity.
pub const TENANT_ACCOUNT: &str = "liqo-cluster";

/// Secret, in [`NAMESPACE`], with the certificate and the key of the auth service.
pub const AUTH_CERTIFICATE_SECRET: &str = "liqo-auth-cert";

/// Secret, in [`NAMESPACE`], with the key that nonces are made of.
pub const NONCE_KEY_SECRET: &str = "liqo-nonce-key";

/// Annotation of [`AUTH_SERVICE`]: SHA-256 fingerprint of the auth service's certificate.
pub const FINGERPRINT_ANNOTATION: &str = "discovery.liqo.io/fingerprint";

/// Secret, in [`NAMESPACE`], with the generation of the identities that are given from now on.
pub const GENERATION_SECRET: &str = "liqo-generation";

/// Key of the generation in [`GENERATION_SECRET`].
pub const GENERATION_KEY: &str = "generation";

/// Annotation of [`TENANT_ACCOUNT`]: the generation of the peer's identity.
pub const GENERATION_ANNOTATION: &str = "discovery.liqo.io/generation";

/// Annotation of [`AUTH_SERVICE`]: the URL at which other clusters reach it, if somebody has named one.
pub const AUTH_URL_ANNOTATION: &str = "discovery.liqo.io/auth-url";

/// Label of a Secret, in [`AUTH_NAMESPACE`], that records who has asked for an identity.
pub const IDENTITY_RECORD_LABEL: &str = "discovery.liqo.io/identity";

/// Label of a tenant namespace, with the value `true`.
pub const TENANT_LABEL: &str = "liqo.io/tenant";

/// Label of what is copied to another cluster: the id of that cluster.
pub const REPLICATE_TO_LABEL: &str = "liqo.io/replicate-to";

/// Label of a copy: id of the cluster that it comes from.
pub const REPLICATED_FROM_LABEL: &str = "liqo.io/replicated-from";

/// Finalizer of what has a copy in another cluster.
pub const REPLICATOR_FINALIZER: &str = "liqo.io/replicator";

/// Finalizer of a ResourceOffer that a virtual node stands for.
pub const KUBELET_FINALIZER: &str = "liqo.io/kubelet";

/// Label of a twin namespace: id of the cluster whose namespace it stands for.
pub const REMOTE_CLUSTER_ID_LABEL: &str = "liqo.io/remote-cluster-id";

/// Annotation of a twin namespace: name of the namespace, in the home cluster, that it stands for.
pub const HOME_NAMESPACE_ANNOTATION: &str = "liqo.io/home-namespace";

/// Label of a namespace that reaches into other clusters, with the value [`SCHEDULING`]: its pods
/// pass the admission webhook.
pub const SCHEDULING_LABEL: &str = "liqo.io/scheduling";

/// Value of [`SCHEDULING_LABEL`].
pub const SCHEDULING: &str = "enabled";

/// ClusterRole, bound in twin namespaces: what the home cluster may do there during a peering.
pub const TWIN_ROLE: &str = "liqo-twin";

/// ClusterRole, bound in twin namespaces: what the home cluster may do there when the peering is over.
pub const ENDING_TWIN_ROLE: &str = "liqo-twin-ending";

/// ClusterRole, bound in twin namespaces: what the controllers need there.
pub const CONTROL_TWIN_ROLE: &str = "liqo-control-twin";

/// ClusterRole, bound in tenant namespaces: what the controllers need there.
pub const CONTROL_TENANT_ROLE: &str = "liqo-control-tenant";

/// ClusterRole, bound in tenant namespaces: what virtual nodes need there.
pub const KUBELET_TENANT_ROLE: &str = "liqo-kubelet-tenant";

/// ClusterRole, bound in offloaded namespaces: what virtual nodes need there.
pub const KUBELET_NAMESPACE_ROLE: &str = "liqo-kubelet-namespace";

/// Annotation of a ForeignCluster that is there because of a ResourceRequest: the request's UID.
pub const REQUEST_ANNOTATION: &str = "discovery.liqo.io/request";

/// Annotation of a ForeignCluster that a SearchDomain has found: the DNS name that the domain lists.
pub const RECORD_ANNOTATION: &str = "discovery.liqo.io/record";

/// Annotation of a NamespaceOffloading that stands for [`ENABLED_LABEL`]: it goes with the label.
pub const MADE_FOR_ANNOTATION: &str = "offloading.liqo.io/made-for";

/// Annotation of what is reflected: a digest of what the home cluster wants it to be.
pub const FORGED_ANNOTATION: &str = "liqo.io/forged";

/// RoleBinding, in an offloaded namespace, by which the virtual nodes' component reads what it
/// reflects.
pub const KUBELET_ROLE_BINDING: &str = "liqo-kubelet";

/// ServiceAccount, in [`NAMESPACE`], of the controllers.
pub const CONTROL_ACCOUNT: &str = "liqo-control";

/// ServiceAccount, in [`NAMESPACE`], of the virtual nodes' component.
pub const KUBELET_ACCOUNT: &str = "liqo-kubelet";

/// Secret, in [`NAMESPACE`], with the certificate of the admission webhook.
pub const WEBHOOK_CERTIFICATE: &str = "liqo-webhook-cert";

/// The MutatingWebhookConfiguration of the admission webhook.
pub const WEBHOOK_CONFIGURATION: &str = "liqo";

/// Service, in [`NAMESPACE`], of the auth service.
pub const AUTH_SERVICE: &str = "liqo-auth";

/// Service, in [`NAMESPACE`], of the admission webhook.
pub const WEBHOOK_SERVICE: &str = "liqo-webhook";

/// Lease, in [`NAMESPACE`], of the active gateway, with annotations that say where it is.
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

/// Annotation of a ShadowPod and of its pod: uid of the pod, in the home cluster, that it stands for.
pub const HOME_UID_ANNOTATION: &str = "liqo.io/home-uid";

/// Annotation of an offloaded pod: uid of the remote pod whose status it has, and how often each
/// container was started again before that one, in JSON.
pub const RESTARTS_ANNOTATION: &str = "liqo.io/restarts";

/// Annotation of a ShadowPod that is to go: the seconds that its pod gets to end.
pub const GRACE_PERIOD_ANNOTATION: &str = "liqo.io/grace-period-seconds";

/// Annotation of a ShadowPod: why its pod can't be made.
pub const POD_FAILURE_ANNOTATION: &str = "liqo.io/pod-failure";

/// Annotation of a ShadowPod whose pod has ended for good: the phase that it ended in.
pub const POD_FINISHED_ANNOTATION: &str = "liqo.io/pod-finished";

/// Annotation of the pod of a ShadowPod: digest of what it was made of.
pub const SHADOW_DIGEST_ANNOTATION: &str = "liqo.io/shadow-digest";

/// Name by which clients of [`IPAM_SERVICE`] know it.
pub fn ipam_host() -> String {
    format!("{IPAM_SERVICE}.{NAMESPACE}.svc")
}

/// Name of the virtual node for a cluster. `taken` says which names nodes have that stand for
/// something else.
pub fn virtual_node(name: &ClusterName, id: &ClusterId, taken: impl Fn(&str) -> bool) -> String {
    let node = format!("liqo-{name}");
    if taken(&node) { format!("{node}-{}", id.short()) } else { node }
}

/// Name of the namespace, on either side, with what a peering with this cluster needs.
pub fn tenant_namespace(name: &ClusterName) -> String {
    format!("liqo-tenant-{name}")
}

/// Name of the twin, in another cluster, of a namespace that is offloaded with `DefaultName`.
pub fn default_remote_namespace(namespace: &str, home: &ClusterName) -> String {
    format!("{namespace}-{home}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_node_is_called_after_its_cluster() {
        let name = "rome".parse().unwrap();
        let id = "9f0f1f3e-9f2c-4b6a-8d7e-0c4a7b0f2c11".parse().unwrap();
        assert_eq!(virtual_node(&name, &id, |_| false), "liqo-rome");
        let taken = |node: &str| node == "liqo-rome";
        assert_eq!(virtual_node(&name, &id, taken), "liqo-rome-9f0f1");
    }

    #[test]
    fn the_longest_name_still_makes_dns_labels() {
        let name: ClusterName = "n".repeat(ClusterName::MAX_LEN).parse().unwrap();
        let id = "i".repeat(ClusterId::MAX_LEN).parse().unwrap();
        assert!(virtual_node(&name, &id, |_| true).len() <= 63);
        assert!(tenant_namespace(&name).len() + "-12345".len() <= 63);
    }

    #[test]
    fn namespaces_are_called_after_the_cluster() {
        let rome = "rome".parse().unwrap();
        assert_eq!(tenant_namespace(&rome), "liqo-tenant-rome");
        assert_eq!(default_remote_namespace("shop", &rome), "shop-rome");
    }
}
