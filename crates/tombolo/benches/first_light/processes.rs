//! Memory and CPU time of the processes of a node.

use anyhow::{Context, Result};
use tombolo_testbed::Node;

/// Prints id, program, name, memory (PSS) in KiB and CPU ticks of every process of interest.
const LOOK: &str = r#"
for dir in /proc/[0-9]*; do
  words=$(tr '\0' ' ' 2>/dev/null <$dir/cmdline) || continue
  set -- $words
  case "${1##*/}" in
    tombolo) name="tombolo $2" ;;
    kubelet | kube-proxy) name="kubernetes ${1##*/}" ;;
    *) continue ;;
  esac
  memory=$(awk '/^Pss:/ { print $2 }' $dir/smaps_rollup)
  ticks=$(awk '{ print $14 + $15 }' $dir/stat)
  echo "${dir##*/} $name $memory $ticks"
done
getconf CLK_TCK
"#;

/// One process at one moment.
#[derive(Debug, Clone)]
pub struct Process {
    pub id: u32,
    pub program: String,
    pub name: String,
    /// In MiB.
    pub memory: f64,
    /// CPU time in seconds.
    pub time: f64,
}

impl Process {
    /// The processes of Tombolo and of the baseline on a node.
    pub async fn of(node: &Node) -> Result<Vec<Self>> {
        let said = node.run(&["sh", "-c", LOOK]).await?;
        let (lines, ticks) = said.trim().rsplit_once('\n').context("no process was found")?;
        let ticks: f64 = ticks.parse().context("read the ticks per second")?;
        lines.lines().map(|line| Self::parse(line, ticks).context(line.to_owned())).collect()
    }

    /// Whether it is a process of Tombolo.
    pub fn is_ours(&self) -> bool {
        self.program == "tombolo"
    }

    fn parse(line: &str, ticks_a_second: f64) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, program, name, memory, ticks] = words[..] else { return None };
        let number = |text: &str| text.parse::<f64>().ok();
        Some(Self {
            id: id.parse().ok()?,
            program: program.to_owned(),
            name: name.to_owned(),
            memory: number(memory)? / 1024.0,
            time: number(ticks)? / ticks_a_second,
        })
    }
}
