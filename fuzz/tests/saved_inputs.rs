//! Replays the saved inputs of the fuzz targets.

use std::path::Path;

use toolbooth_fuzz::TARGETS;

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn each_target_holds_on_its_saved_inputs() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let targets: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names(&seeds),
        targets,
        "each target has a folder of saved inputs, and no other is there"
    );
    for (target, run) in TARGETS {
        let files = names(&seeds.join(target));
        assert!(!files.is_empty(), "{target} has no saved inputs");
        for file in files {
            println!("{target}: {file}");
            run(&std::fs::read(seeds.join(target).join(file)).unwrap());
        }
    }
}
