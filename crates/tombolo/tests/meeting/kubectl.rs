//! Use of an issued identity with kubectl.

use tombolo_testbed::Cluster;

/// Runs kubectl on a node of `side`, with the kubeconfig in the Secret.
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
    let user = user.expect("the identity is accepted");
    assert!(user.starts_with("liqo:"), "{user}");
    allowed.expect("it may read requests");
    let refused = format!("{:?}", refused.expect_err("it may not read Secrets"));
    assert!(refused.contains("forbidden"), "{refused}");
}
