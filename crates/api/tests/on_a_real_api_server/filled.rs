//! One object of each kind, with all fields set.

use std::{collections::BTreeMap, fmt::Debug, str::FromStr};

use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference},
        discovery::v1::{
            Endpoint, EndpointConditions, EndpointHints, EndpointPort, ForNode, ForZone,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{Condition, Time},
    },
};
use serde_json::json;
use tombolo_api::{
    ClusterIdentity, Reference,
    config::{
        AuthConfig, ClusterConfig, ClusterConfigSpec, DiscoveryConfig, NetworkSettings,
        SharingConfig,
    },
    discovery::{
        AuthStatus, ForeignCluster, ForeignClusterSpec, ForeignClusterStatus, FoundCluster,
        Network, Peering, Related, RequestState, ResourceRequest, ResourceRequestSpec,
        ResourceRequestStatus, SearchDomain, SearchDomainSpec, SearchDomainStatus, TenantNamespace,
    },
    names,
    net::{
        BackendType, ClusterMapping, ConfiguredCluster, Connection, ConnectionStatus,
        EndpointMapping, IpamStorage, IpamStorageSpec, NatMapping, NatMappingSpec, NetworkConfig,
        NetworkConfigSpec, NetworkConfigStatus, QuarantinedAddress, QuarantinedCidr, Subnets,
        TunnelEndpoint, TunnelEndpointSpec, TunnelEndpointStatus, Writer,
    },
    offloading::{
        NamespaceMappingStrategy, NamespaceOffloading, NamespaceOffloadingSpec,
        NamespaceOffloadingStatus, OffloadedCluster, OffloadingPhase, PodOffloadingStrategy,
    },
    sharing::{
        OfferPhase, ResourceOffer, ResourceOfferSpec, ResourceOfferStatus, ResourceQuota,
        StorageClass,
    },
    virtualkubelet::{
        AddressType, EndpointSliceTemplate, MappingPhase, NamespaceMap, NamespaceMapSpec,
        NamespaceMapStatus, RemoteNamespace, ShadowEndpointSlice, ShadowEndpointSliceSpec,
        ShadowPod, ShadowPodSpec,
    },
};

const NAME: &str = "filled";

pub fn cluster_config() -> ClusterConfig {
    ClusterConfig::new(
        names::CLUSTER_CONFIG,
        ClusterConfigSpec {
            discovery: DiscoveryConfig {
                enabled: false,
                advertise: false,
                group: Some("building-4".into()),
                interfaces: vec!["eth1".into()],
                ttl_seconds: 17,
                search_period_seconds: 18,
                autojoin: true,
            },
            auth: AuthConfig { empty_token: true, certificate: Some("auth-tls".into()) },
            sharing: SharingConfig { auto_accept: false, share_percentage: 0, overcommit: true },
            network: NetworkSettings {
                reserved_subnets: vec![read("172.16.0.0/12"), read("fd00:1::/32")],
                additional_pools: vec![read("100.64.0.0/10")],
                external_prefix_length: Some(20),
                endpoint: Some("gateway.example.com:5871".into()),
            },
        },
    )
}

pub fn foreign_cluster() -> ForeignCluster {
    let related = || Some(Related { available: true, reference: Some(reference()) });
    let mut object = ForeignCluster::new(
        NAME,
        ForeignClusterSpec {
            auth_url: "https://[2001:db8::7]:32443/liqo".into(),
            join: true,
            cluster_identity: Some(identity()),
            ttl: Some(120),
            fingerprint: Some(read(&"0f".repeat(32))),
        },
    );
    object.status = Some(ForeignClusterStatus {
        auth_status: Some(AuthStatus::EmptyRefused),
        tenant_namespace: Some(TenantNamespace {
            local: Some("liqo-tenant-rome".into()),
            remote: Some("liqo-tenant-milan".into()),
        }),
        outgoing: Some(Peering { peered: true, peering_request: Some(reference()) }),
        incoming: Some(Peering { peered: false, peering_request: Some(reference()) }),
        network: Some(Network {
            local_network_config: related(),
            remote_network_config: related(),
            tunnel_endpoint: related(),
        }),
        conditions: conditions(),
    });
    object
}

pub fn resource_request() -> ResourceRequest {
    let mut object = ResourceRequest::new(
        NAME,
        ResourceRequestSpec {
            cluster_identity: identity(),
            auth_url: "https://auth.server.example.com.:443".into(),
        },
    );
    object.status =
        Some(ResourceRequestStatus { state: RequestState::Refused, conditions: conditions() });
    object
}

pub fn search_domain() -> SearchDomain {
    let mut object = SearchDomain::new(
        NAME,
        SearchDomainSpec { domain: "_liqo._tcp.example.com.".into(), autojoin: Some(true) },
    );
    object.status = Some(SearchDomainStatus {
        foreign_clusters: vec![FoundCluster { name: "rome".into() }],
        conditions: conditions(),
    });
    object
}

pub fn ipam_storage() -> IpamStorage {
    IpamStorage::new(
        NAME,
        IpamStorageSpec {
            prefixes: [("10.0.0.0/8".into(), ByteString(vec![0, 1, 2]))].into(),
            pools: vec![read("10.0.0.0/8"), read("fd00::/8")],
            cluster_subnets: [(
                read("cluster-1"),
                Subnets {
                    local_nat_pod_cidr: Some(read("10.230.0.0/16")),
                    local_nat_external_cidr: Some(read("None")),
                    remote_pod_cidr: Some(read("10.200.0.0/16")),
                    remote_external_cidr: Some(read("10.201.0.0/16")),
                    remote_nat_pod_cidr: read("10.202.0.0/16"),
                    remote_nat_external_cidr: read("10.203.0.0/16"),
                },
            )]
            .into(),
            external_cidr: Some(read("10.201.0.0/16")),
            endpoint_mappings: [(
                read("2001:db8::7"),
                EndpointMapping {
                    ip: read("10.201.0.2"),
                    cluster_mappings: [(
                        read("cluster-1"),
                        ClusterMapping { owners: ["liqo-kubelet".to_owned()].into() },
                    )]
                    .into(),
                },
            )]
            .into(),
            quarantined_addresses: [(
                read("10.201.0.3"),
                QuarantinedAddress {
                    ip: read("10.0.0.7"),
                    until: Time(read("2026-11-01T10:00:00Z")),
                },
            )]
            .into(),
            quarantined_cidrs: [(
                read("10.204.0.0/16"),
                QuarantinedCidr {
                    of: read("10.200.0.0/16"),
                    until: Time(read("2026-11-01T10:00:00Z")),
                },
            )]
            .into(),
            writer: Some(Writer {
                holder: "one".into(),
                claims: 1,
                open: vec!["cluster-1-0".into()],
            }),
            nat_mappings_configured: [(read("cluster-1"), ConfiguredCluster {})].into(),
            pod_cidr: Some(read("10.200.0.0/16")),
            service_cidr: Some(read("10.96.0.0/12")),
        },
    )
}

pub fn nat_mapping() -> NatMapping {
    NatMapping::new(
        NAME,
        NatMappingSpec {
            cluster_id: read("cluster-1"),
            cluster_mappings: [
                (read("10.0.0.5"), read("192.168.0.45")),
                (read("2001:db8::5"), read("fd00:201::2")),
            ]
            .into(),
        },
    )
}

pub fn network_config() -> NetworkConfig {
    let mut object = NetworkConfig::new(
        NAME,
        NetworkConfigSpec {
            cluster_id: read("cluster-1"),
            pod_cidr: read("10.200.0.0/16"),
            external_cidr: read("10.201.0.0/17"),
            endpoint_ip: read("192.0.2.10"),
            backend_type: BackendType::Wireguard,
            backend_config: backend_config(),
        },
    );
    object.status = Some(NetworkConfigStatus {
        processed: true,
        pod_cidr_nat: Some(read("None")),
        external_cidr_nat: Some(read("10.211.0.0/17")),
        pod_cidr: Some(read("10.200.0.0/16")),
        external_cidr: Some(read("10.201.0.0/17")),
    });
    object
}

pub fn tunnel_endpoint() -> TunnelEndpoint {
    let mut object = TunnelEndpoint::new(
        NAME,
        TunnelEndpointSpec {
            cluster_id: read("cluster-1"),
            pod_cidr: read("10.200.0.0/16"),
            external_cidr: read("10.201.0.0/16"),
            endpoint_ip: read("2001:db8::10"),
            backend_type: BackendType::Wireguard,
            backend_config: backend_config(),
        },
    );
    object.status = Some(TunnelEndpointStatus {
        phase: Some("Ready".into()),
        local_pod_cidr: Some(read("10.200.0.0/16")),
        local_nat_pod_cidr: Some(read("10.210.0.0/16")),
        remote_nat_pod_cidr: Some(read("10.220.0.0/16")),
        local_external_cidr: Some(read("10.201.0.0/16")),
        local_nat_external_cidr: Some(read("None")),
        remote_nat_external_cidr: Some(read("10.221.0.0/16")),
        remote_tunnel_public_ip: Some(read("2001:db8::10")),
        local_tunnel_public_ip: Some(read("192.0.2.20")),
        tunnel_iface_index: Some(7),
        tunnel_iface_name: Some("liqo.tunnel".into()),
        veth_iface_index: Some(8),
        veth_iface_name: Some("liqo.host".into()),
        gateway_ip: Some(read("192.0.2.1")),
        connection: Some(Connection {
            status: Some(ConnectionStatus::Connecting),
            status_message: Some("waiting for a handshake".into()),
            peer_configuration: backend_config(),
        }),
    });
    object
}

pub fn namespace_offloading() -> NamespaceOffloading {
    let requirement = |key: &str, operator: &str, values: &[&str]| NodeSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: Some(values.iter().map(|&value| value.into()).collect()),
    };
    let mut object = NamespaceOffloading::new(
        names::NAMESPACE_OFFLOADING,
        NamespaceOffloadingSpec {
            namespace_mapping_strategy: NamespaceMappingStrategy::SelectedName,
            remote_namespace_name: Some("shop".into()),
            pod_offloading_strategy: PodOffloadingStrategy::Local,
            cluster_selector: Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_expressions: Some(vec![requirement("region", "NotIn", &["eu", "us"])]),
                    match_fields: Some(vec![requirement("metadata.name", "In", &["liqo-rome"])]),
                }],
            }),
        },
    );
    object.status = Some(NamespaceOffloadingStatus {
        clusters: vec![OffloadedCluster {
            cluster_id: read("cluster-1"),
            remote_namespace_name: Some("shop".into()),
            phase: OffloadingPhase::Failed,
            message: Some("there is one of this name".into()),
        }],
        conditions: conditions(),
    });
    object
}

pub fn resource_offer() -> ResourceOffer {
    let quantity = |text: &str| Quantity(text.into());
    let mut object = ResourceOffer::new(
        NAME,
        ResourceOfferSpec {
            cluster_id: read("cluster-1"),
            resource_quota: ResourceQuota {
                hard: [("cpu".into(), quantity("3500m")), ("nvidia.com/gpu".into(), quantity("1"))]
                    .into(),
            },
            labels: [("topology.kubernetes.io/zone".into(), "eu-1".into())].into(),
            storage_classes: vec![StorageClass {
                storage_class_name: "fast".into(),
                default: true,
            }],
            withdrawal_timestamp: Some(time()),
        },
    );
    object.status = Some(ResourceOfferStatus {
        phase: OfferPhase::Accepted,
        virtual_node: Some("liqo-rome".into()),
    });
    object
}

pub fn namespace_map() -> NamespaceMap {
    let mut object = NamespaceMap::new(
        NAME,
        NamespaceMapSpec { desired_mapping: [("shop".into(), "shop-rome".into())].into() },
    );
    object.status = Some(NamespaceMapStatus {
        current_mapping: [(
            "shop".into(),
            RemoteNamespace {
                remote_namespace: "shop-rome".into(),
                phase: MappingPhase::Refused,
                message: Some("there is one of this name".into()),
            },
        )]
        .into(),
    });
    object
}

pub fn shadow_endpoint_slice() -> ShadowEndpointSlice {
    let endpoint = Endpoint {
        addresses: vec!["2001:db8::7".into()],
        conditions: Some(EndpointConditions {
            ready: Some(false),
            serving: Some(true),
            terminating: Some(true),
        }),
        deprecated_topology: None,
        hints: Some(EndpointHints {
            for_nodes: Some(vec![ForNode { name: "node-1".into() }]),
            for_zones: Some(vec![ForZone { name: "eu-1".into() }]),
        }),
        hostname: Some("web-0".into()),
        node_name: Some("node-1".into()),
        target_ref: Some(ObjectReference {
            api_version: Some("v1".into()),
            field_path: Some("spec".into()),
            kind: Some("RemotePod".into()),
            name: Some("web-0".into()),
            namespace: Some("shop".into()),
            resource_version: Some("7".into()),
            uid: Some("03285c05-e2b5-4b1b-81bb-e31b1d9bb8cd".into()),
        }),
        zone: Some("eu-1".into()),
    };
    let port = EndpointPort {
        app_protocol: Some("kubernetes.io/h2c".into()),
        name: Some("http".into()),
        port: Some(8080),
        protocol: Some("SCTP".into()),
    };
    ShadowEndpointSlice::new(
        NAME,
        ShadowEndpointSliceSpec {
            template: EndpointSliceTemplate {
                address_type: AddressType::IPv6,
                endpoints: vec![endpoint],
                ports: vec![port],
            },
        },
    )
}

pub fn shadow_pod() -> ShadowPod {
    let pod = json!({
        "containers": [{ "name": "web", "image": "nginx", "later": { "kept": true } }],
        "nodeSelector": { "disk": "ssd" },
        "aFieldOfLaterKubernetes": "kept",
    });
    ShadowPod::new(NAME, ShadowPodSpec { pod })
}

fn read<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

fn identity() -> ClusterIdentity {
    ClusterIdentity {
        cluster_id: read("9f0f1f3e-9f2c-4b6a-8d7e-0c4a7b0f2c11"),
        cluster_name: read("rome"),
    }
}

fn reference() -> Reference {
    Reference { name: "rome".into(), namespace: "liqo-tenant-rome".into() }
}

fn backend_config() -> BTreeMap<String, String> {
    [
        ("publicKey".into(), "6SXq1UBMLC7/WUE0AFSX2XgD4bSxZRRNfQm3E0fR7VY=".into()),
        ("port".into(), "5871".into()),
    ]
    .into()
}

fn conditions() -> Vec<Condition> {
    vec![Condition {
        type_: "APIServer".into(),
        status: "Unknown".into(),
        reason: "NotChecked".into(),
        message: "not checked yet".into(),
        last_transition_time: time(),
        observed_generation: Some(3),
    }]
}

fn time() -> Time {
    Time(read("2026-01-01T00:00:00Z"))
}
