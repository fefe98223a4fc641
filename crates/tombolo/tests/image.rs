//! The product's image holds one static program, and a cluster can run it.

use std::path::PathBuf;

use tombolo_testbed::{ClusterSpec, Testbed, images};

/// The static program, which cargo does not build for tests.
fn static_program() -> PathBuf {
    std::env::var_os("TOMBOLO_STATIC")
        .map(PathBuf::from)
        .expect("TOMBOLO_STATIC names the static program: run this by `make test-clusters`")
}

#[tokio::test]
async fn a_pod_of_the_image_runs() {
    let rome = ClusterSpec::new("rome").image(images::tombolo(&static_program()));
    let bed = Testbed::builder("image").cluster(rome).start().await.unwrap();
    let rome = bed.cluster("rome");
    rome.apply(
        "apiVersion: v1
kind: Pod
metadata: {name: tombolo}
spec:
  restartPolicy: Never
  containers: [{name: tombolo, image: 'localhost/tombolo:dev', args: [--version]}]
",
    )
    .await
    .unwrap();
    let done = ["wait", "pod/tombolo", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s"];
    rome.kubectl(&done).await.unwrap();
    let said = rome.kubectl(&["logs", "tombolo"]).await.unwrap();
    assert_eq!(said.trim(), concat!("tombolo ", env!("CARGO_PKG_VERSION")));
}

/// The size of the program itself depends on its profile; `make image` checks that of a release.
#[test]
fn the_image_adds_little_to_the_program() {
    let tar = std::env::temp_dir().join(format!("tombolo-image-{}.tar", std::process::id()));
    let program = static_program();
    let output = std::process::Command::new(&program)
        .args(["image", "--output"])
        .arg(&tar)
        .output()
        .unwrap();
    let size = std::fs::metadata(&tar).unwrap().len();
    std::fs::remove_file(&tar).unwrap();
    assert!(output.status.success(), "{output:?}");
    let added = size.saturating_sub(std::fs::metadata(&program).unwrap().len());
    assert!(added < 100_000, "{added} bytes besides the program");
}
