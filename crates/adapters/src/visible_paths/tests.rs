use toolbooth_contracts::sandbox::{FsProfile, WritePath};

use super::*;
use crate::project::{ENTRIES_MAX, has_credentials};

fn folder(paths: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for path in paths {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    folder
}

#[test]
fn a_program_opens_its_toolchain_and_nothing_beside_it() {
    let made = folder(&[
        "opt/bin/tool",
        "opt/other/secrets",
        "node/bin/node",
        "node/lib/node_modules/npm/x",
        "node/etc/x",
        "venv/pyvenv.cfg",
        "venv/bin/server",
        "versions/python/lib/python3.11/x",
        "versions/python/bin/python3",
        ".pyenv/shims/python3",
        ".pyenv/versions/x",
    ]);
    let at = |path: &str| made.path().join(path);
    let of = |path: &str| installation(&at(path), None);
    assert!(of("opt/bin/tool").iter().all(|path| path.ends_with("tool")));
    let node = of("node/bin/node");
    assert!(node.contains(&at("node/lib")) && node.contains(&at("node/bin")));
    assert!(!node.contains(&at("node")) && !node.contains(&at("node/etc")));
    assert!(of("venv/bin/server").contains(&at("venv/pyvenv.cfg")));
    assert!(of("versions/python/bin/python3").contains(&at("versions/python/lib")));
    assert!(of(".pyenv/shims/python3").contains(&at(".pyenv")));
    // A home is never a toolchain.
    let home = at("versions/python");
    let found = installation(&at("versions/python/bin/python3"), Some(&home));
    assert!(!found.contains(&at("versions/python/lib")), "{found:?}");
}

#[test]
fn a_file_opens_its_project_or_itself() {
    let made = folder(&["loose/a.py", "loose/secret", "app/package.json", "app/src/main.js"]);
    let at = |path: &str| made.path().join(path);
    assert_eq!(opened_with(&at("loose/a.py"), None), Some(at("loose/a.py")));
    assert_eq!(opened_with(&at("app/src/main.js"), None), Some(at("app")));
    assert_eq!(opened_with(&at("app"), None), Some(at("app")));
    assert_eq!(opened_with(&at("app"), Some(&at("app"))), None, "a home is wide");
    assert_eq!(opened_with(Path::new("/etc"), None), None);
    // A project file in a wide folder does not make the folder a project.
    assert_eq!(opened_with(&at("app/src/main.js"), Some(&at("app"))), Some(at("app/src/main.js")));
}

#[test]
fn secrets_of_a_project_are_covered_and_its_repository_is_not_written() {
    let made = folder(&[
        ".env",
        ".env.local",
        ".env.example",
        "packages/a/.env",
        "node_modules/x/.env",
        "keep/.env",
        ".git/hooks/x",
        ".git/modules/m/x",
        "packages/a/.git/hooks/x",
    ]);
    // Many files of the program do not hide the secrets.
    for number in 0..ENTRIES_MAX + 10 {
        std::fs::write(made.path().join(format!("a{number}")), "").unwrap();
    }
    let at = |path: &str| made.path().canonicalize().unwrap().join(path);
    std::fs::write(at(".git/config"), "[remote]\nurl = https://me:hunter@h/x.git\n").unwrap();
    let cwd = at("");
    let cwd = lexical(&cwd);
    let location =
        ProgramLocation { words: &[], cwd: &cwd, home: None, also: &[], hidden: &[], own: None };
    let fs = FsProfile {
        read: vec!["keep/.env".to_owned()],
        write: vec![WritePath { path: ".".to_owned(), max_mb: None }],
        tmp_mb: None,
    };
    let profile = SandboxProfile { fs: Some(fs), ..SandboxProfile::default() };
    let seen = binds(&profile, &location, false);
    let mut covered = hidden(&profile, &location, &seen);
    covered.sort();
    let expected = [".env", ".env.local", ".git/config", "packages/a/.env"].map(at);
    assert_eq!(covered, expected);
    let of = |path: &str| seen.iter().find(|bind| bind.path == at(path)).map(|it| it.writable);
    assert_eq!((of(".git"), of("keep/.env")), (Some(false), Some(false)));
    assert_eq!(of("packages/a/.git"), Some(false), "a nested repository");
    let mut named = profile.clone();
    if let Some(fs) = &mut named.fs {
        fs.write.push(WritePath { path: ".git".to_owned(), max_mb: None });
    }
    let seen = binds(&named, &location, false);
    assert!(seen.iter().any(|bind| bind.path == at(".git") && bind.writable));
    std::fs::write(at(".git/config"), "[core]\nbare = false\n[remote]\nurl = git@h:x.git\n")
        .unwrap();
    assert!(!has_credentials(&at(".git/config")));
}
