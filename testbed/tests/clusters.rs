//! Two clusters with the same CIDRs and two nodes each: functions of Kubernetes, and isolation of
//! the clusters.

mod common;

use common::{kubectl_says, rome_and_milan};
use tokio::sync::OnceCell;
use tombolo_testbed::{Node, Testbed, Timings, eventually};

static BED: OnceCell<Testbed> = OnceCell::const_new();

async fn bed() -> &'static Testbed {
    BED.get_or_init(|| rome_and_milan("clusters", Timings::default())).await
}

mod as_a_user {
    use super::*;

    #[tokio::test]
    async fn a_deployment_answers_by_its_services_dns_name_from_every_node() {
        let bed = bed().await;
        for cluster in bed.clusters() {
            let pods =
                cluster.kubectl(&["get", "pods", "-l", "app=client", "-o", "name"]).await.unwrap();
            assert_eq!(pods.lines().count(), 2);
            for pod in pods.lines() {
                // Each kube-proxy learns of new endpoints in its own time.
                let url = "http://web.default.svc.cluster.local:8080/";
                let command = ["curl", "-s", "--max-time", "2", url];
                let ask = async || cluster.exec("default", pod, &command).await;
                let answer = eventually(&format!("{pod} → {url}"), ask, Result::is_ok).await;
                assert!(answer.as_ref().unwrap().starts_with("web-"), "{answer:?}");
            }
        }
    }

    #[tokio::test]
    async fn logs_and_exec_work() {
        let rome = bed().await.cluster("rome");
        let said = rome.exec("default", "deploy/client", &["echo", "here"]).await;
        assert_eq!(said.unwrap(), "here\n");
        let logs = rome.kubectl(&["logs", "deploy/client"]).await.unwrap();
        assert_eq!(logs, "client started\n");
    }

    #[tokio::test]
    async fn port_forward_works() {
        let rome = bed().await.cluster("rome");
        let mut command = tokio::process::Command::new("bash");
        // kubectl prints the port it listens on before anything else.
        let script = "exec 3< <(exec kubectl port-forward deploy/web :8080); forward=$!
            read -r line <&3; port=${line#*127.0.0.1:}
            curl -s --max-time 10 http://127.0.0.1:${port%% *}/; kill $forward";
        command
            .args(["-c", script])
            .env("KUBECONFIG", rome.kubeconfig())
            .env("PATH", bed().await.path_with_kubectl());
        let output = command.output().await.unwrap();
        let answer = String::from_utf8_lossy(&output.stdout);
        assert!(answer.starts_with("web-"), "{output:?}");
    }

    #[tokio::test]
    async fn a_node_port_answers_on_every_node() {
        let milan = bed().await.cluster("milan");
        for to in milan.nodes() {
            for from in milan.nodes() {
                // Each kube-proxy learns of new endpoints in its own time.
                let url = format!("http://{}:30080/", to.address());
                let what = format!("{} → {url}", from.name());
                let ask = async || from.run(&["curl", "-s", "--max-time", "2", &url]).await;
                let answer = eventually(&what, ask, Result::is_ok).await.unwrap();
                assert!(answer.starts_with("web-"), "{what}: {answer:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_pod_over_its_memory_limit_is_killed() {
        let rome = bed().await.cluster("rome");
        rome.apply(include_str!("manifests/greedy.yaml")).await.unwrap();
        let reason = "jsonpath={.status.containerStatuses[0].state.terminated.reason}";
        kubectl_says(rome, &["get", "pod", "greedy", "-o", reason], "OOMKilled").await;
        rome.kubectl(&["delete", "pod", "greedy", "--now"]).await.unwrap();
    }

    #[tokio::test]
    async fn an_image_can_be_loaded_while_the_cluster_runs() {
        let milan = bed().await.cluster("milan");
        let image =
            tombolo_testbed::Image::new("localhost/late:1", &["/hello"]).text("/hello", "x");
        milan.load(&image).await.unwrap();
        for node in milan.nodes() {
            let listed = node.run(&["ctr", "-n", "k8s.io", "images", "ls", "-q"]).await.unwrap();
            assert!(listed.lines().any(|name| name == "localhost/late:1"), "{listed}");
        }
    }

    #[tokio::test]
    async fn a_wrong_manifest_is_an_error_that_names_it() {
        let rome = bed().await.cluster("rome");
        let wrong =
            "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: 0}]}";
        let error = rome.apply(wrong).await.unwrap_err().to_string();
        assert!(error.contains("apply Service x in cluster rome"), "{error}");
        assert!(error.contains("spec.ports[0].port"), "{error}");
    }
}

mod the_network {
    use super::*;

    #[tokio::test]
    async fn nodes_of_different_clusters_reach_each_other() {
        let bed = bed().await;
        let address = bed.cluster("milan").node(2).address().to_string();
        let ping = ["ping", "-c", "1", "-W", "2", &address];
        bed.cluster("rome").node(1).run(&ping).await.unwrap();
    }

    /// Whether packets with this untranslated source address pass from node to node.
    async fn passes(from: &Node, to: &Node, source: &str) -> bool {
        let listen = format!("timeout 3 tcpdump -c 1 -nqi eth0 icmp and src {source}");
        let rules = format!("type filter hook output priority raw; ip saddr {source} notrack");
        let send = format!(
            "ip addr add {source}/32 dev lo
             nft 'table ip untracked {{ chain output {{ {rules}; }}; }}'
             ping -c 14 -i 0.2 -W 1 -I {source} {}
             nft delete table ip untracked
             ip addr del {source}/32 dev lo",
            to.address()
        );
        let (listen, send) = (["bash", "-c", &listen], ["bash", "-c", &send]);
        let (seen, sent) = tokio::join!(to.run(&listen), from.run(&send));
        sent.unwrap();
        seen.is_ok()
    }

    #[tokio::test]
    async fn pod_addresses_do_not_leave_their_cluster() {
        let bed = bed().await;
        let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
        assert!(passes(rome.node(1), rome.node(2), "10.244.99.1").await);
        assert!(!passes(rome.node(1), milan.node(1), "10.244.99.1").await);
    }

    #[tokio::test]
    async fn foreign_addresses_are_dropped_inside_a_cluster() {
        let milan = bed().await.cluster("milan");
        assert!(!passes(milan.node(1), milan.node(2), "192.168.77.1").await);
    }

    #[tokio::test]
    async fn multicast_dns_passes_between_clusters() {
        let bed = bed().await;
        let (rome, milan) = (bed.cluster("rome").node(1), bed.cluster("milan").node(2));
        let listen =
            format!("UDP4-RECV:5353,reuseaddr,ip-add-membership=224.0.0.251:{}", milan.address());
        let listen = ["timeout", "20", "socat", "-u", &listen, "STDOUT"];
        let from = format!(
            "UDP4-DATAGRAM:224.0.0.251:5353,bind={},ip-multicast-if={}",
            rome.address(),
            rome.address()
        );
        let speak =
            format!("while :; do echo hello; sleep 0.2; done | timeout 10 socat -u STDIN {from}");
        let listen = format!("{} | head -n 1", listen.join(" "));
        let (listen, speak) = (["bash", "-c", &listen], ["bash", "-c", &speak]);
        let (heard, _) = tokio::join!(milan.run(&listen), rome.run(&speak));
        assert_eq!(heard.unwrap(), "hello\n");
    }

    #[tokio::test]
    async fn reverse_path_filtering_is_strict() {
        for cluster in bed().await.clusters() {
            for node in cluster.nodes() {
                let value = node.run(&["cat", "/proc/sys/net/ipv4/conf/all/rp_filter"]).await;
                assert_eq!(value.unwrap().trim(), "1");
            }
        }
    }
}
