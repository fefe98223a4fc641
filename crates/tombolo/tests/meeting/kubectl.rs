//! The identity that a cluster has got, as somebody uses it who works there.

use tombolo_testbed::Cluster;

/// Kubectl, from a node of `side`, with the kubeconfig that is in the Secret.
pub async fn can_use_the_identity(side: &Cluster, other: &str) {
    let namespace = format!("liqo-tenant-{other}");
    let template = "go-template={{.data.kubeconfig | base64decode}}";
    let secret = ["get", "secret", "-n", &namespace, "liqo-identity", "-o", template];
    let kubeconfig = side.kubectl(&secret).await.expect("the identity");
    let file = side.kubeconfig().with_file_name("identity.kubeconfig");
    std::fs::write(&file, kubeconfig).expect("written");
    let path = file.to_str().expect("a path");
    let run = async |arguments: &[&str]| {
        side.kubectl_on(1, &[&["--kubeconfig", path], arguments].concat()).await
    };
    let user = run(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]).await;
    let (allowed, refused) =
        (run(&["get", "resourcerequests"]).await, run(&["get", "secrets", "-A"]).await);
    std::fs::remove_file(&file).expect("removed");
    let user = user.expect("it is known there");
    assert!(user.starts_with("liqo:"), "{user}");
    allowed.expect("it may look at requests");
    let refused = format!("{:?}", refused.expect_err("it may not look at Secrets"));
    assert!(refused.contains("forbidden"), "{refused}");
}
