//! Output tables of kubectl, by column.

use std::collections::BTreeMap;

use tombolo_testbed::Cluster;

/// The rows of `kubectl get`, each by column title.
pub async fn printed(cluster: &Cluster, kind: &str) -> Vec<BTreeMap<String, String>> {
    let table = cluster.kubectl(&["get", kind]).await.expect("kubectl gets it");
    let mut lines = table.lines();
    let Some(titles) = lines.next() else { return Vec::new() };
    let starts: Vec<usize> = titles
        .char_indices()
        .filter(|(at, c)| *c != ' ' && (*at == 0 || titles.as_bytes()[at - 1] == b' '))
        .map(|(at, _)| at)
        .collect();
    let cells = |line: &str| -> Vec<String> {
        let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
        let cell = |(start, end): (&usize, usize)| {
            let end = end.min(line.len());
            line.get(*start..end).unwrap_or_default().trim().to_owned()
        };
        starts.iter().zip(ends).map(cell).collect()
    };
    let titles = cells(titles);
    lines.map(|line| titles.iter().cloned().zip(cells(line)).collect()).collect()
}
