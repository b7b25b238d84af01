//! Writes the custom resource definitions into `config/crd` (`make crds`), or to stdout without an argument.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;

use egress_operator::crd::manifests;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let mut out = std::io::stdout().lock();
    for manifest in manifests::all() {
        match &directory {
            Some(directory) => {
                std::fs::create_dir_all(directory)?;
                let path = directory.join(&manifest.file);
                std::fs::write(&path, manifest.text)?;
                writeln!(out, "{}", path.display())?;
            }
            None => write!(out, "---\n{}", manifest.text)?,
        }
    }
    Ok(())
}
