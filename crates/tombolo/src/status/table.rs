//! The report as text.

use comfy_table::{Table, presets};

use super::report::{Peer, Report, State};

pub fn text(report: &Report) -> String {
    let setting = |key: &str| report.cluster.get(key).map_or("?", String::as_str);
    let components: Vec<String> = report
        .components
        .iter()
        .map(|c| {
            let name = c.name.strip_prefix("liqo-").unwrap_or(&c.name);
            let mark = if c.is_ready() { "" } else { " (not ready)" };
            format!("{name} {}/{}{mark}", c.ready, c.wanted)
        })
        .collect();
    let mut text = format!(
        "Cluster {} (id {})\n  API server  {}\n  Networks    pods {}, services {}\n  Components  {}\n",
        setting("CLUSTER_NAME"),
        setting("CLUSTER_ID"),
        setting("API_SERVER_URL"),
        setting("POD_CIDR"),
        setting("SERVICE_CIDR"),
        components.join(", "),
    );
    if report.peers.is_empty() {
        text += "\nNo other cluster is known yet: see `tombolo peer --help`.\n";
    }
    text += &section(&peers(report));
    text += &section(&borrowed(report));
    text += &section(&lent(report));
    text += &section(&namespaces(report));
    for peer in &report.peers {
        text += &problems(peer);
    }
    text
}

fn section(table: &Table) -> String {
    if table.is_empty() { String::new() } else { format!("\n{table}\n") }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    table
}

fn peers(report: &Report) -> Table {
    let header =
        ["PEER", "DISCOVERY", "AUTH", "OUTGOING", "INCOMING", "NETWORK", "API SERVER", "AUTH URL"];
    let mut table = table(&header);
    for peer in &report.peers {
        table.add_row([
            peer.cluster_name.as_str(),
            peer.found_by.as_deref().unwrap_or("-"),
            &peer.authentication,
            yes(&peer.outgoing),
            yes(&peer.incoming),
            yes(&peer.network),
            yes(&peer.api_server),
            &peer.auth_url,
        ]);
    }
    table
}

fn borrowed(report: &Report) -> Table {
    let mut table = table(&["BORROWED FROM", "NODE", "STATE", "CPU", "MEMORY", "PODS", "IN USE"]);
    for peer in &report.peers {
        let Some(borrowed) = &peer.borrowed else {
            continue;
        };
        let amount = |name: &str| borrowed.resources.get(name).map_or("-", String::as_str);
        table.add_row([
            peer.cluster_name.as_str(),
            borrowed.node.as_deref().unwrap_or("-"),
            if borrowed.ready { "Ready" } else { "NotReady" },
            amount("cpu"),
            amount("memory"),
            amount("pods"),
            &pods(borrowed.pods),
        ]);
    }
    table
}

fn lent(report: &Report) -> Table {
    let mut table = table(&["LENT TO", "CPU", "MEMORY", "PODS", "IN USE"]);
    for peer in &report.peers {
        let Some(lent) = &peer.lent else {
            continue;
        };
        let amount = |name: &str| lent.resources.get(name).map_or("-", String::as_str);
        let in_use = pods(lent.pods);
        table.add_row([
            &peer.cluster_name,
            amount("cpu"),
            amount("memory"),
            amount("pods"),
            &in_use,
        ]);
    }
    table
}

fn namespaces(report: &Report) -> Table {
    let mut table = table(&["NAMESPACE", "PODS", "READY", "TWIN NAMESPACES"]);
    for namespace in &report.namespaces {
        let twins = namespace.clusters.iter();
        let twins: Vec<String> =
            twins.map(|(cluster, name)| format!("{name} in {cluster}")).collect();
        let ready = if namespace.ready { "yes" } else { "no" };
        table.add_row([&namespace.name, &namespace.pods, ready, &twins.join(", ")]);
    }
    table
}

/// Messages of the conditions that should be true and are not.
fn problems(peer: &Peer) -> String {
    let states = [
        ("authentication", &peer.authenticated, true),
        ("outgoing peering", &peer.outgoing, peer.join),
        ("network", &peer.network, peer.borrowed.is_some() || peer.lent.is_some()),
        ("API server", &peer.api_server, true),
    ];
    let bad = states.into_iter().filter(|(_, state, wanted)| {
        *wanted && state.status == "False" && !state.message.is_empty()
    });
    bad.map(|(what, state, _)| format!("\n{}: {what}: {}\n", peer.cluster_name, state.message))
        .collect()
}

fn yes(state: &State) -> &'static str {
    match state.status.as_str() {
        "True" => "yes",
        "False" => "no",
        _ => "-",
    }
}

fn pods(count: usize) -> String {
    match count {
        1 => "1 pod".to_owned(),
        count => format!("{count} pods"),
    }
}
