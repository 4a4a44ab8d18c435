use super::*;

fn entries(text: &str) -> Entries {
    let document: toml::Table = toml::from_str(text).unwrap();
    of_configuration(&document, Path::new("/nowhere"), &crate::secret_shapes::shapes())
}

fn names(before: &str, now: &str) -> Vec<String> {
    changes(&entries(before), &entries(now)).into_iter().map(|change| change.name).collect()
}

#[test]
fn names_that_the_author_chooses_hide_no_rights() {
    let shown = |text: &str| serde_json::to_string(&entries(text)).unwrap();
    for name in MASKED {
        let text = shown(&format!(
            "[callers.{name}]\ntools = [\"pay.all\"]\n[policy.history.{name}]\ntool = \"pay.all\"\n\
             [trust.levels]\n{name} = \"trusted\"\n\
             [sandbox.profiles.{name}]\nfs = {{ read = [\"/etc\"] }}\n[sandbox.profiles.{name}.env.set]\nA = \"hidden\"\n"
        ));
        assert!(
            text.matches("pay.all").count() == 2
                && text.contains("/etc")
                && text.contains("\"trusted\""),
            "{text}"
        );
        assert!(!text.contains("hidden"), "{text}");
    }
    for text in [
        "[servers.callers]\nurl = \"u\"\nheaders = { A = \"hidden\" }",
        "[servers.profiles.env]\nA = \"hidden\"",
        "[callers.profiles.secrets.s]\nA = \"hidden\"",
        "[sandbox.profiles.profiles.env.set]\nA = \"hidden\"",
    ] {
        assert!(!shown(text).contains("hidden"), "{text}");
    }
}

const SERVER: &str = "[servers.a]\ncommand = \"x\"\nargs = [\"1\"]\n";

#[test]
fn what_starts_something_else_or_loosens_counts() {
    for more in [
        "env = { B = \"2\" }",
        "cwd = \"/\"",
        "sandbox = \"none\"",
        "sandbox = { base = \"server\", net = { hosts = [\"h:1\"] } }",
        "defaults = { trust_level = \"trusted\" }",
        "overrides = { t = { trust_level = \"trusted\" } }",
        "credentials = \"caller\"",
    ] {
        assert_eq!(names(SERVER, &format!("{SERVER}{more}\n")), ["servers.a"], "{more}");
    }
    assert_eq!(names(SERVER, &SERVER.replace('1', "2")), ["servers.a"]);
    assert_eq!(names(SERVER, &format!("{SERVER}[servers.b]\nurl = \"u\"\n")), ["servers.b"]);
    for section in [
        "[http]\nloopback = \"any\"",
        "[sandbox]\nallow_addresses = [\"10.0.0.1\"]",
        "[sandbox.profiles.p]\nbase = \"server\"",
        "[trust.levels]\nfoo = \"trusted\"",
        "[store]\nurl = \"postgres://h/d\"",
        "[audit]\ncheckpoint_file = \"/f\"",
        "[builtin]\nroots = [\"/\"]",
        "[lock]\nmode = \"off\"",
        "[discovery.defaults]\ntrust_level = \"trusted\"",
        "[runtimes.r]\nkind = \"command\"\ncommand = \"x\"",
        "[commands.c]\ndiscover_command = \"x\"\ncall_command = \"y\"",
        "[endpoints.e]\nurl = \"u\"",
        "[callers.c.secrets.s]\nTOKEN = \"t\"",
        "[callers.c]\nsomething_new = 1",
        "[callers.local]\nmatch = [\"local\"]\noperate = true",
        "[flags]\ntools_policy = false",
        "[policy]\nwhitelist = [\"a\"]",
        "[store]\ndurability = \"memory\"",
        "[audit]\nlog = \"none\"",
        "[retention]\nlogs = \"1s\"",
        "[proxy]\noutput = \"warn\"",
    ] {
        assert_eq!(names(SERVER, &format!("{SERVER}{section}\n")).len(), 1, "{section}");
    }
    let lock = format!("{SERVER}[lock]\nmode = \"file\"\n");
    assert_eq!(names(&lock, SERVER), ["lock"], "less is checked without it");
    let roots = format!("{SERVER}[builtin]\nroots = [\"docs\"]\n");
    assert_eq!(names(&roots, SERVER), ["builtin"], "the whole folder is read without it");
}

#[test]
fn what_starts_nothing_else_does_not_count() {
    for more in
        ["timeout_ms = 5", "description = \"d\"", "enabled = true", "defaults = { timeout_ms = 5 }"]
    {
        assert_eq!(names(SERVER, &format!("{SERVER}{more}\n")), [""; 0], "{more}");
    }
    let more = "[proxy]\nworkers = 1\n[results]\ninline_bytes = 9\n[store]\nbytes_max = 99999999\n";
    assert_eq!(names(SERVER, &format!("{SERVER}{more}")), [""; 0]);
    assert_eq!(names(SERVER, ""), [""; 0], "what is gone starts nothing");
    assert_eq!(names("", &format!("{SERVER}enabled = false\n")), [""; 0]);
}

#[test]
fn secrets_are_not_kept_and_a_change_of_one_counts() {
    let with = |value: &str| {
        format!("{SERVER}env = {{ T = \"{value}\", R = {{ secret_ref = \"env:X\" }} }}\n")
    };
    let kept = serde_json::to_string(&entries(&with("hunter2"))).unwrap();
    assert!(!kept.contains("hunter2") && kept.contains("env:X"), "{kept}");
    assert_eq!(names(&with("hunter2"), &with("hunter3")), ["servers.a"]);
}

#[test]
fn where_links_and_documents_lead_counts() {
    let made = tempfile::tempdir().unwrap();
    let folder = made.path().join("clone");
    std::fs::create_dir_all(folder.join("out")).unwrap();
    std::fs::create_dir_all(made.path().join("home")).unwrap();
    let at = |name: &str| folder.join(name);
    let entries = |text: &str| {
        let document: toml::Table = toml::from_str(text).unwrap();
        of_configuration(&document, &folder, &crate::secret_shapes::shapes())
    };
    let server = "[servers.a]\ncommand = \"x\"\nsandbox = { base = \"server\", fs = { write = [\"out\"] } }\n";
    let endpoint = "[endpoints.e]\nopenapi = \"api.json\"\n";
    std::fs::write(at("api.json"), "{}").unwrap();
    let text = format!("{server}{endpoint}");
    let before = entries(&text);
    assert!(changes(&before, &entries(&text)).is_empty());
    std::fs::remove_dir(at("out")).unwrap();
    std::os::unix::fs::symlink("../home", at("out")).unwrap();
    std::fs::write(at("api.json"), "{\"servers\": []}").unwrap();
    std::fs::write(at(".npmrc"), "registry=https://npm.example/\n").unwrap();
    let found = changes(&before, &entries(&text));
    let names: Vec<&str> = found.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(names, ["endpoints.e", "servers.a"], "{found:?}");
    let now = found[1].now.as_ref().unwrap().to_string();
    assert!(now.contains("leadsTo") && now.contains("npm.example"), "{now}");
}

#[test]
fn every_harmless_setting_is_one() {
    let schema = serde_json::to_value(schemars::schema_for!(crate::config::Config)).unwrap();
    fn has(schema: &Value, root: &Value, path: &[&str]) -> bool {
        let Some((first, rest)) = path.split_first() else { return true };
        let mut stands = vec![schema];
        while let Some(one) = stands.pop() {
            if let Some(reference) = one.get("$ref").and_then(Value::as_str) {
                stands.extend(root.pointer(reference.trim_start_matches('#')));
            }
            for list in ["anyOf", "oneOf", "allOf"] {
                stands.extend(one.get(list).and_then(Value::as_array).into_iter().flatten());
            }
            let inner = match *first {
                "*" => one.get("additionalProperties"),
                name => one.pointer(&format!("/properties/{name}")),
            };
            if inner.is_some_and(|inner| has(inner, root, rest)) {
                return true;
            }
        }
        false
    }
    for pattern in HARMLESS.iter().filter(|pattern| **pattern != "discovery.interval") {
        let path: Vec<&str> = pattern.split('.').collect();
        assert!(has(&schema, &schema, &path), "there is no setting `{pattern}`");
    }
}
