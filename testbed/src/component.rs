//! The Kubernetes components, their command lines and configuration.

use std::net::Ipv4Addr;

use crate::images::PAUSE_NAME;
use crate::spec::{ClusterSpec, Timings};

/// A program on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Containerd,
    Kubelet,
    KubeProxy,
}

/// Parameters of the command lines.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub cluster: &'a ClusterSpec,
    pub node: &'a str,
    pub address: Ipv4Addr,
    pub network_plugins: &'a str,
}

impl Component {
    pub const ALL: [Self; 7] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Containerd,
        Self::Kubelet,
        Self::KubeProxy,
    ];

    /// Name of the program and of its log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }

    pub(crate) fn is_control_plane(self) -> bool {
        matches!(self, Self::Etcd | Self::ApiServer | Self::ControllerManager | Self::Scheduler)
    }

    pub(crate) fn arguments(self, place: &Place<'_>) -> Vec<String> {
        match self {
            Self::Etcd => etcd(place),
            Self::ApiServer => api_server(place),
            Self::ControllerManager => controller_manager(place),
            Self::Scheduler => scheduler(),
            Self::Containerd => lines("--config /etc/kubernetes/containerd.toml"),
            Self::Kubelet => kubelet(place),
            Self::KubeProxy => lines("--config=/etc/kubernetes/kube-proxy.yaml --v=2"),
        }
    }

    /// Name, below `/etc/kubernetes`, and content of its configuration file.
    pub(crate) fn configuration(self, place: &Place<'_>) -> Option<(&'static str, String)> {
        match self {
            Self::Containerd => Some(("containerd.toml", containerd_config(place))),
            Self::Kubelet => Some(("kubelet.yaml", kubelet_config(place))),
            Self::KubeProxy => Some(("kube-proxy.yaml", kube_proxy_config(place))),
            _ => None,
        }
    }
}

fn lines(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn etcd(place: &Place<'_>) -> Vec<String> {
    let node = place.node;
    let mut arguments = lines(&format!(
        "--name={node}
         --data-dir=/var/lib/etcd
         --listen-client-urls=http://127.0.0.1:2379
         --advertise-client-urls=http://127.0.0.1:2379
         --listen-peer-urls=http://127.0.0.1:2380
         --initial-advertise-peer-urls=http://127.0.0.1:2380
         --initial-cluster={node}=http://127.0.0.1:2380
         --snapshot-count=10000
         --auto-compaction-retention=5m
         --log-level=warn"
    ));
    if !place.cluster.durable {
        arguments.push("--unsafe-no-fsync".into());
    }
    arguments
}

fn api_server(place: &Place<'_>) -> Vec<String> {
    let mut arguments = lines(&format!(
        "--etcd-servers=http://127.0.0.1:2379
         --advertise-address={}
         --secure-port=6443
         --service-cluster-ip-range={}
         --client-ca-file=/run/pki/ca.crt
         --tls-cert-file=/run/pki/apiserver.crt
         --tls-private-key-file=/run/pki/apiserver.key
         --service-account-issuer=https://kubernetes.default.svc.cluster.local
         --service-account-key-file=/run/pki/sa.pub
         --service-account-signing-key-file=/run/pki/sa.key
         --kubelet-client-certificate=/run/pki/kubelet-client.crt
         --kubelet-client-key=/run/pki/kubelet-client.key
         --kubelet-preferred-address-types=InternalIP
         --authorization-mode=Node,RBAC
         --enable-admission-plugins=NodeRestriction
         --allow-privileged=true
         --requestheader-client-ca-file=/run/pki/ca.crt
         --requestheader-allowed-names=front-proxy-client
         --requestheader-username-headers=X-Remote-User
         --requestheader-group-headers=X-Remote-Group
         --requestheader-extra-headers-prefix=X-Remote-Extra-
         --proxy-client-cert-file=/run/pki/front-proxy.crt
         --proxy-client-key-file=/run/pki/front-proxy.key
         --enable-aggregator-routing=true
         --profiling=false",
        place.address, place.cluster.service_cidr,
    ));
    arguments.extend(place.cluster.api_server_flags.iter().cloned());
    arguments
}

fn controller_manager(place: &Place<'_>) -> Vec<String> {
    let timings = &place.cluster.timings;
    lines(&format!(
        "--kubeconfig=/run/pki/controller-manager.conf
         --authentication-kubeconfig=/run/pki/controller-manager.conf
         --authorization-kubeconfig=/run/pki/controller-manager.conf
         --bind-address=127.0.0.1
         --leader-elect=false
         --root-ca-file=/run/pki/ca.crt
         --service-account-private-key-file=/run/pki/sa.key
         --use-service-account-credentials=true
         --cluster-signing-cert-file=/run/pki/ca.crt
         --cluster-signing-key-file=/run/pki/ca.key
         --flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins
         --allocate-node-cidrs=true
         --cluster-cidr={}
         --service-cluster-ip-range={}
         --node-cidr-mask-size=24
         --node-monitor-period={}ms
         --node-monitor-grace-period={}ms
         --profiling=false
         --kube-api-qps=300
         --kube-api-burst=600",
        place.cluster.pod_cidr,
        place.cluster.service_cidr,
        timings.node_monitor_period.as_millis(),
        timings.node_monitor_grace.as_millis(),
    ))
}

fn scheduler() -> Vec<String> {
    lines(
        "--kubeconfig=/run/pki/scheduler.conf
         --authentication-kubeconfig=/run/pki/scheduler.conf
         --authorization-kubeconfig=/run/pki/scheduler.conf
         --bind-address=127.0.0.1
         --leader-elect=false
         --profiling=false
         --kube-api-qps=300
         --kube-api-burst=600",
    )
}

fn kubelet(place: &Place<'_>) -> Vec<String> {
    let (node, address) = (place.node, place.address);
    lines(&format!(
        "--config=/etc/kubernetes/kubelet.yaml
         --kubeconfig=/run/pki/{node}.conf
         --hostname-override={node}
         --node-ip={address}
         --root-dir=/var/lib/kubelet
         --v=2"
    ))
}

fn containerd_config(place: &Place<'_>) -> String {
    let plugins = place.network_plugins;
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_NAME}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "/etc/cni/net.d"
"#
    )
}

fn kubelet_config(place: &Place<'_>) -> String {
    let (node, dns) = (place.node, place.cluster.dns_service());
    // Set explicitly, even the default changes how often the kubelet reports the whole status.
    let timings = place.cluster.timings;
    let update = timings.node_status_update;
    let update = if update == Timings::default().node_status_update {
        String::new()
    } else {
        format!("nodeStatusUpdateFrequency: {}ms", update.as_millis())
    };
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: /run/pki/ca.crt}}
authorization: {{mode: Webhook}}
tlsCertFile: /run/pki/{node}.crt
tlsPrivateKeyFile: /run/pki/{node}.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDNS: ["{dns}"]
clusterDomain: cluster.local
resolvConf: /etc/kubernetes/resolv.conf
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: "100Mi", nodefs.available: "1%", nodefs.inodesFree: "1%", imagefs.available: "1%", imagefs.inodesFree: "1%"}}
{update}
serializeImagePulls: false
volumePluginDir: /var/lib/kubelet/volumeplugins
"#
    )
}

fn kube_proxy_config(place: &Place<'_>) -> String {
    format!(
        r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: /run/pki/proxy.conf}}
mode: nftables
clusterCIDR: {}
hostnameOverride: {}
oomScoreAdj: 0
conntrack: {{maxPerCore: 0, min: 0}}
"#,
        place.cluster.pod_cidr, place.node
    )
}
