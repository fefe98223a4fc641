//! Writes the CRDs of all kinds as YAML, one file each.
//!
//! `crds <dir>` writes them, and removes the files of former kinds;
//! `crds <dir> --check` lists the files that are out of date, and fails if there are any.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::Path,
    process::ExitCode,
};

const HEADER: &str =
    "# Generated from the Rust types of tombolo-api by `make crds`: do not edit.\n";

fn main() -> ExitCode {
    let mut args: Vec<String> = env::args().skip(1).collect();
    let check = args.iter().position(|arg| arg == "--check");
    if let Some(position) = check {
        args.remove(position);
    }
    let [dir] = args.as_slice() else {
        eprintln!("usage: crds <dir> [--check]");
        return ExitCode::from(2);
    };
    let result = if check.is_some() {
        stale(Path::new(dir)).map(|stale| report(dir, &stale))
    } else {
        write(Path::new(dir)).map(|()| ExitCode::SUCCESS)
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn report(dir: &str, stale: &[String]) -> ExitCode {
    if stale.is_empty() {
        return ExitCode::SUCCESS;
    }
    for file in stale {
        eprintln!("{dir}/{file}");
    }
    eprintln!("The files above are out of date: run `make crds`");
    ExitCode::FAILURE
}

fn write(dir: &Path) -> Result<(), String> {
    let wanted = files()?;
    fs::create_dir_all(dir).map_err(says(dir))?;
    for (name, text) in present(dir)? {
        if !wanted.contains_key(&name) && text.starts_with(HEADER) {
            let path = dir.join(name);
            fs::remove_file(&path).map_err(says(&path))?;
        }
    }
    for (name, text) in wanted {
        let path = dir.join(name);
        fs::write(&path, text).map_err(says(&path))?;
    }
    Ok(())
}

/// Files that differ, are missing or are superfluous.
fn stale(dir: &Path) -> Result<Vec<String>, String> {
    let (wanted, present) = (files()?, present(dir)?);
    let names: BTreeSet<&String> = wanted.keys().chain(present.keys()).collect();
    let differs = |name: &&String| wanted.get(*name) != present.get(*name);
    Ok(names.into_iter().filter(differs).cloned().collect())
}

fn files() -> Result<BTreeMap<String, String>, String> {
    tombolo_api::crds()
        .into_iter()
        .map(|crd| {
            let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
            let yaml = serde_saphyr::to_string(&crd).map_err(|e| format!("{name}: {e}"))?;
            Ok((name, format!("{HEADER}{yaml}")))
        })
        .collect()
}

/// The YAML files of a directory, by name.
fn present(dir: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut present = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(says(dir))? {
        let path = entry.map_err(says(dir))?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path).map_err(says(&path))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            present.insert(name.into_owned(), text);
        }
    }
    Ok(present)
}

fn says(path: &Path) -> impl Fn(io::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}
