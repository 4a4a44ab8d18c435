use super::*;

fn folder(paths: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let made = tempfile::tempdir().unwrap();
    let root = made.path().canonicalize().unwrap();
    for path in paths {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    (made, root)
}

#[cfg(unix)]
#[test]
fn a_server_is_given_the_folders_of_a_project_and_files_that_hold_no_secret() {
    let (_made, root) = folder(&[
        ".env",
        ".envrc",
        "package.json",
        "README.md",
        "src/main.js",
        "src/deep/er/x",
        "apps/a/.env.local",
        "apps/a/index.js",
        "apps/a/lib/x.js",
        "apps/b/x.js",
        "config/dev.txt",
        "config/a.txt",
        "target/.env",
        "target/x",
        ".git/config",
    ]);
    std::os::unix::fs::symlink("config/dev.txt", root.join(".env.dev")).unwrap();
    let odd: std::ffi::OsString =
        std::os::unix::ffi::OsStringExt::from_vec(b"caf\xe9.txt".to_vec());
    std::fs::write(root.join(&odd), "").unwrap();
    std::fs::hard_link(root.join(".env"), root.join("settings.txt")).unwrap();
    for (name, to) in [("shown", "src"), ("hidden", ".env"), ("outside", "/etc"), ("up", "..")] {
        std::os::unix::fs::symlink(to, root.join(name)).unwrap();
    }
    let mut parts: Vec<String> = parts(&root, &SecretPaths::of_machine(None))
        .iter()
        .filter(|part| !part.ends_with(&odd))
        .map(|part| part.strip_prefix(&root).unwrap().display().to_string())
        .collect();
    parts.sort();
    assert!(is_project(&root));
    let given = [
        ".git",
        "README.md",
        "apps/a/index.js",
        "apps/a/lib",
        "apps/b",
        "config/a.txt",
        "package.json",
        "shown",
        "src",
        "target/x",
    ];
    assert_eq!(parts, given);
    // If that file is among the searched ones, another name of it is found too.
    assert!(survey(&root, OF_CALLS).secrets.contains(&root.join("settings.txt")));
}

/// The nearest parts come first, independently of the number of parts.
#[cfg(unix)]
#[test]
fn many_packages_with_secrets_take_nothing_from_the_top() {
    let (_made, root) = folder(&["package.json", "docs/a.md", "zz/a"]);
    for package in 0..20 {
        let package = root.join(format!("packages/p{package}"));
        std::fs::create_dir_all(package.join("src")).unwrap();
        for name in [".env", "package.json", "a.js"] {
            std::fs::write(package.join(name), "x").unwrap();
        }
    }
    let parts = parts(&root, &SecretPaths::of_machine(None));
    assert_eq!(parts.len(), 3 + 20 * 3, "{parts:?}");
    for top in ["package.json", "docs", "zz"] {
        assert!(parts.iter().take(3).any(|part| *part == root.join(top)), "{top}: {parts:?}");
    }
}

/// A worktree names its repository in a file.
#[test]
fn a_repository_elsewhere_is_found() {
    let (_made, root) = folder(&["main/.bare/config", "tree/a"]);
    let bare = root.join("main/.bare");
    std::fs::write(bare.join("config"), "[remote]\nurl = https://me:hunter2@h/x.git\n").unwrap();
    let own = bare.join("worktrees/tree");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("commondir"), "../..\n").unwrap();
    std::fs::write(root.join("tree/.git"), format!("gitdir: {}\n", own.display())).unwrap();
    let found = survey(&root.join("tree"), OF_CALLS).secrets;
    assert_eq!(found, [bare.join("config")]);
}

#[test]
fn a_folder_of_notes_is_no_project() {
    let (_made, root) = folder(&["a.md", "deep/b.md"]);
    assert!(!is_project(&root));
    std::fs::write(root.join(".env.local"), "").unwrap();
    assert!(is_project(&root));
}
