use toolbooth_launcher::order::{Bind, Relay};

use super::*;

fn explainer(folder: &Path, profile_name: Option<&str>) -> DenialExplainer {
    let bind = |path: PathBuf, writable| Bind {
        path,
        writable,
        optional: false,
        mapped: true,
        bytes_max: None,
        own: false,
    };
    let sandbox_spec = SandboxSpec {
        binds: vec![
            bind(folder.join("read"), false),
            bind(folder.join("read/out"), true),
            bind("/usr".into(), false),
        ],
        hidden: vec![folder.join("read/.env")],
        net: Net::Relayed(Relay { ports: vec![443], proxy: false }),
        tmp_mb: 1,
        ..SandboxSpec::default()
    };
    let cwd = folder.join("read");
    let program = Program {
        argv: &["/usr/bin/touch".to_owned(), "--".to_owned()],
        cwd: &cwd,
        home: None,
        profile_name,
    };
    DenialExplainer::of(&server_profile(), &sandbox_spec, &program)
}

#[test]
fn a_denial_is_told_with_the_line_that_would_allow_it() {
    let made = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(made.path().join("read/out")).unwrap();
    std::fs::create_dir_all(made.path().join("read/node_modules/x/dist")).unwrap();
    std::fs::write(made.path().join("elsewhere"), "x").unwrap();
    let explainer = explainer(made.path(), None);
    let at = made.path().display();
    let write = |path: &str| format!("base = \"server\", fs = {{ write = [\"{at}{path}\"] }}");
    for (output, told) in [
        (
            format!("Error: EROFS: read-only file system, open '{at}/read/new.txt'"),
            Some(write("/read")),
        ),
        (
            format!("PermissionError: [Errno 13] Permission denied: '{at}/read/x'"),
            Some(write("/read")),
        ),
        // The format of system programs: the program first, then its argument.
        (
            "/usr/bin/touch: cannot touch 'x.txt': Read-only file system".into(),
            Some(write("/read")),
        ),
        (
            format!("/usr/bin/touch: cannot touch '{at}/read/y z.txt': Read-only file system"),
            Some(write("/read")),
        ),
        ("/usr/bin/sh: 1: cannot create sub/x: Read-only file system".into(), Some(write("/read"))),
        (format!("tee: {at}/read/out2/x: Permission denied"), Some(write("/read"))),
        (
            format!("cp: cannot create regular file '{at}/n/x': Read-only file system"),
            Some(write("")),
        ),
        (
            format!("cat: {at}/elsewhere: No such file or directory"),
            Some(format!("fs = {{ read = [\"...\", \"{at}/elsewhere\"] }}")),
        ),
        (format!("open {at}/read/.env: permission denied"), Some("covers".into())),
        ("bun: Function not implemented".into(), Some("system call".into())),
        ("connect ECONNREFUSED 93.184.216.34:80".into(), Some("\"...\", \"HOST:80\"".into())),
        (
            "dial unix /var/run/docker.sock: connect: permission denied".into(),
            Some("sandbox = \"none\"".into()),
        ),
        ("connect ECONNREFUSED 93.184.216.34:443".into(), None),
        (format!("cat: {at}/nowhere: No such file or directory"), None),
        (format!("EACCES: permission denied, open '{at}/read/out/x'"), None),
        ("all is well in /etc".into(), None),
    ] {
        let sentences = explainer.sentences(&output);
        match told {
            Some(told) => assert!(sentences.contains(&told), "{output}: {sentences}"),
            None => assert_eq!(sentences, "", "{output}"),
        }
    }
}

#[test]
fn no_line_opens_the_system_or_installed_packages() {
    let made = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(made.path().join("read/node_modules/x")).unwrap();
    let explainer = explainer(made.path(), Some("careful"));
    for output in [
        "EROFS: open '/usr/lib/not-there'".to_owned(),
        "EROFS: open '/not-there'".to_owned(),
        "EROFS: open '/tmp/not-there'".to_owned(),
        format!("EROFS: open '{}/read/node_modules/x/memory.json'", made.path().display()),
    ] {
        let sentences = explainer.sentences(&output);
        assert!(sentences.contains("does not let it write"), "{output}: {sentences}");
        assert!(sentences.contains("`careful`"), "{sentences}");
        assert!(!sentences.contains("would allow it"), "{output}: {sentences}");
    }
    let secrets = format!("open {}/read/.env: permission denied", made.path().display());
    let sentences = explainer.sentences(&secrets);
    assert!(sentences.contains("which may have secrets"), "{sentences}");
    assert!(!sentences.contains("would allow it"), "{sentences}");
}

#[test]
fn the_agent_is_told_nothing_that_its_answer_does_not_show() {
    let made = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(made.path().join("read")).unwrap();
    std::fs::write(made.path().join("elsewhere"), "x").unwrap();
    let explainer = explainer(made.path(), None);
    let at = made.path().display();
    let open = |answer: &str, stderr: &str| {
        let execution_log = ExecutionLog::default();
        explainer.explain(answer, stderr, &execution_log);
        execution_log.take().denied.iter().map(|denial| denial.open).collect::<Vec<_>>()
    };
    let written = format!("EROFS: '{at}/read/a'");
    assert_eq!(open(&written, ""), [true]);
    assert_eq!(open("", &written), [false]);
    // The agent must not learn whether a file exists that the program does not see.
    assert_eq!(open(&format!("cat: {at}/elsewhere: No such file or directory"), ""), [false]);
    let flood = "EROFS: '/x/y'\n".repeat(100_000);
    assert!(explainer.explanations(&flood).len() <= SENTENCES_MAX);
}
