//! Fault injection. Every fault is a guard: dropping it, or calling `undo`, ends the fault.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::command::Cmd;
use crate::component::Component;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::node::Node;
use crate::process::{self, Identity};
use crate::testbed::Testbed;
use crate::wait::block_on;
use crate::wan;

type Undo = Box<dyn FnOnce() -> Result<()> + Send>;

/// A fault that lasts as long as this guard.
#[must_use = "a dropped fault is undone immediately"]
pub struct Fault {
    what: String,
    undo: Option<Undo>,
}

impl Fault {
    fn new(what: String, undo: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        Self { what, undo: Some(Box::new(undo)) }
    }

    /// Ends the fault now.
    pub fn undo(mut self) -> Result<()> {
        self.undo.take().map_or(Ok(()), |undo| undo())
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take()
            && let Err(error) = undo()
        {
            eprintln!("undo \"{}\": {error}", self.what);
        }
    }
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fault({})", self.what)
    }
}

impl Cluster {
    /// A power cut: kills all processes of the node at once, and keeps its disk. Undo boots it.
    pub fn kill_node(&self, number: usize) -> Result<Fault> {
        let node = self.node(number).clone();
        if !node.is_up() {
            return Err(Error::Refused(format!("{} is down already", node.name())));
        }
        node.cut_power()?;
        let cluster = self.clone();
        Ok(Fault::new(format!("{} is down", node.name()), move || {
            block_on(cluster.boot_node(&node))
        }))
    }

    /// Stops a component. Undo starts it and waits until it works.
    pub fn stop(&self, number: usize, component: Component) -> Result<Fault> {
        let node = self.node(number);
        let process = running(node, component)?;
        process::signal(process.pid, Signal::KILL);
        let limit = std::time::Duration::from_secs(10);
        if !process::wait_gone(&[process], limit) {
            return Err(Error::Late {
                what: format!("the end of {} on {}", component.name(), node.name()),
                limit,
                hint: String::new(),
            });
        }
        let (cluster, node) = (self.clone(), node.clone());
        let what = format!("{} on {} is stopped", component.name(), node.name());
        Ok(Fault::new(what, move || block_on(cluster.start_component(&node, component))))
    }

    /// Freezes a component: it keeps its connections and does not answer. Undo resumes it.
    pub fn freeze(&self, number: usize, component: Component) -> Result<Fault> {
        let node = self.node(number);
        let process = running(node, component)?;
        process::signal(process.pid, Signal::STOP);
        let what = format!("{} on {} is frozen", component.name(), node.name());
        Ok(Fault::new(what, move || {
            if process.is_alive() {
                process::signal(process.pid, Signal::CONT);
            }
            Ok(())
        }))
    }
}

fn running(node: &Node, component: Component) -> Result<Identity> {
    let pid = node.running().get(&component).copied();
    pid.and_then(Identity::of).ok_or_else(|| {
        let (component, node) = (component.name(), node.name());
        Error::Refused(format!("{component} is not running on {node}"))
    })
}

/// One end of a path: a node, all nodes of a cluster, or the machine.
#[derive(Debug, Clone)]
pub struct End {
    name: String,
    ports: Vec<String>,
}

impl End {
    /// The machine that runs the tests.
    pub fn machine() -> Self {
        Self { name: "the machine".into(), ports: vec![wan::MACHINE.into()] }
    }
}

impl From<&Node> for End {
    fn from(node: &Node) -> Self {
        Self { name: node.name().to_owned(), ports: vec![node.port()] }
    }
}

impl From<&Cluster> for End {
    fn from(cluster: &Cluster) -> Self {
        Self {
            name: cluster.name().to_owned(),
            ports: cluster.nodes().iter().map(Node::port).collect(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// The packets between two ends, by default in both directions and of all ports.
#[derive(Debug, Clone)]
pub struct Path {
    layout: Layout,
    from: End,
    to: End,
    one_way: bool,
    port: Option<(Protocol, u16)>,
}

impl Testbed {
    /// The path between two nodes, two clusters, or one of each.
    pub fn between<'a>(&self, from: impl Into<End> + 'a, to: impl Into<End> + 'a) -> Path {
        Path {
            layout: self.bed.layout,
            from: from.into(),
            to: to.into(),
            one_way: false,
            port: None,
        }
    }
}

impl Path {
    /// Only the packets from the first end to the second.
    pub fn one_way(mut self) -> Self {
        self.one_way = true;
        self
    }

    /// Only packets to or from this port.
    pub fn port(mut self, protocol: Protocol, port: u16) -> Self {
        self.port = Some((protocol, port));
        self
    }

    /// Drops all packets.
    pub fn cut(&self) -> Result<Fault> {
        self.filter("cut", "drop")
    }

    /// Drops this percentage of packets.
    pub fn lose(&self, percent: u8) -> Result<Fault> {
        if percent > 100 {
            return Err(Error::Refused(format!("{percent} is not a percentage of lost packets")));
        }
        let rule = format!("numgen random mod 100 < {percent} drop");
        self.filter(&format!("loses {percent} %"), &rule)
    }

    /// Limits the rate in each direction to kilobits per second, with a queue.
    pub fn limit(&self, kilobits: u32) -> Result<Fault> {
        if kilobits == 0 {
            return Err(Error::Refused("a rate of 0 is a cut: use cut()".into()));
        }
        let class = next_number();
        let marking = self.filter("limited", &format!("meta priority set 1:{class:x}"))?;
        let wan = self.layout.wan();
        let mut ports = self.to.ports.clone();
        if !self.one_way {
            ports.extend(self.from.ports.iter().cloned());
        }
        let shaping = Shaping { wan, ports, class };
        let shaped = shaping.add(kilobits);
        let what = format!("{} limited to {kilobits} kbit/s", self.shown());
        let fault = Fault::new(what, move || {
            shaping.remove();
            marking.undo()
        });
        shaped.map(|()| fault)
    }

    /// Adds an nft table for the fault, which is evaluated before the rules of the network.
    fn filter(&self, what: &str, verdict: &str) -> Result<Fault> {
        let table = format!("fault{}", next_number());
        let ports = |end: &End| format!("{{ {} }}", end.ports.join(", "));
        let mut rules = String::new();
        let mut directions = vec![(&self.from, &self.to)];
        if !self.one_way {
            directions.push((&self.to, &self.from));
        }
        for (from, to) in directions {
            let way = format!("iifname {} oifname {}", ports(from), ports(to));
            match self.port {
                None => rules += &format!("    {way} {verdict}\n"),
                Some((protocol, port)) => {
                    let protocol = match protocol {
                        Protocol::Tcp => "tcp",
                        Protocol::Udp => "udp",
                    };
                    for side in ["sport", "dport"] {
                        rules += &format!("    {way} {protocol} {side} {port} {verdict}\n");
                    }
                }
            }
        }
        let wan = self.layout.wan();
        Cmd::words(&format!("ip netns exec {wan} nft -f -"))
            .stdin(format!(
                "table bridge {table} {{\n  chain forward {{\n    \
                 type filter hook forward priority -10;\n{rules}  }}\n}}\n"
            ))
            .run()?;
        Ok(Fault::new(format!("{} {what}", self.shown()), move || {
            Cmd::words(&format!("ip netns exec {wan} nft delete table bridge {table}"))
                .run()
                .map(drop)
        }))
    }

    fn shown(&self) -> String {
        let arrow = if self.one_way { "→" } else { "↔" };
        format!("{} {arrow} {}", self.from.name, self.to.name)
    }
}

/// A traffic class at the bridge ports of the receivers, selected by the priority of packets.
struct Shaping {
    wan: String,
    ports: Vec<String>,
    class: u32,
}

impl Shaping {
    fn add(&self, kilobits: u32) -> Result<()> {
        let class = self.class;
        for port in &self.ports {
            // Another limit may have created it already; packets without a class are not limited.
            let _ = self.tc(&format!("qdisc add dev {port} root handle 1: htb default 0")).ok();
            self.tc(&format!(
                "class add dev {port} parent 1: classid 1:{class:x} htb rate {kilobits}kbit"
            ))
            .run()?;
        }
        Ok(())
    }

    fn remove(&self) {
        let class = self.class;
        for port in &self.ports {
            let _ = self.tc(&format!("class del dev {port} classid 1:{class:x}")).ok();
            let classes = self.tc(&format!("class show dev {port}")).run();
            if classes.is_ok_and(|classes| classes.trim().is_empty()) {
                let _ = self.tc(&format!("qdisc del dev {port} root")).ok();
            }
        }
    }

    fn tc(&self, rest: &str) -> Cmd {
        Cmd::words(&format!("ip netns exec {} tc {rest}", self.wan))
    }
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
