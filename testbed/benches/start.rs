//! The start time of clusters, step by step. The baseline, measured in the same run, is a bare API
//! server: the time from the start of etcd and kube-apiserver to the first response.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tombolo_testbed::{ClusterSpec, Progress, Step, Testbed};

#[tokio::main]
async fn main() -> tombolo_testbed::Result<()> {
    tombolo_testbed::prepare(&Progress::plain())?;
    let cases = [
        ("control plane only", vec![ClusterSpec::new("rome").control_plane_only()]),
        ("one node with DNS", vec![ClusterSpec::new("rome")]),
        (
            "two clusters of two nodes",
            vec![ClusterSpec::new("rome").nodes(2), ClusterSpec::new("milan").nodes(2)],
        ),
    ];
    let mut yardstick = None;
    for (name, clusters) in cases {
        let (seconds, steps) = timed(clusters).await?;
        println!("\n{name}: {seconds:.1} s");
        let mut before = 0.0;
        for (scope, what, at) in &steps {
            println!("  {at:6.2} s  +{:5.2}  {scope}: {what}", at - before);
            before = *at;
        }
        let find =
            |wanted: &str| steps.iter().find(|(_, what, _)| what == wanted).map(|step| step.2);
        let booted = find("nodes booted").unwrap_or_default();
        let bare = find("API server answers").unwrap_or_default() - booted;
        let yardstick = *yardstick.get_or_insert(bare);
        println!("  = {:.2} × a bare API server ({yardstick:.1} s)", seconds / yardstick);
    }
    Ok(())
}

type Timed = Vec<(String, String, f64)>;

async fn timed(clusters: Vec<ClusterSpec>) -> tombolo_testbed::Result<(f64, Timed)> {
    let steps: Arc<Mutex<Vec<Step>>> = Arc::default();
    let sink = Arc::clone(&steps);
    let progress = Progress::new(move |step| sink.lock().expect("not poisoned").push(step));
    let start = Instant::now();
    let builder = Testbed::builder("bench").progress(progress);
    let bed = clusters
        .into_iter()
        .fold(builder, tombolo_testbed::TestbedBuilder::cluster)
        .start()
        .await?;
    let seconds = start.elapsed().as_secs_f64();
    bed.remove()?;
    let steps = steps.lock().expect("not poisoned");
    let relative = steps.iter().map(|step| {
        let at = (step.at - start).as_secs_f64();
        (step.scope.clone(), step.what.clone(), at)
    });
    Ok((seconds, relative.collect()))
}
