use super::*;

fn at(reference: &str) -> Result<String, String> {
    let location = SecretLocation::try_from(reference.to_owned()).unwrap();
    Setting::Secret(location).expose().map_err(|error| error.to_string())
}

#[cfg(unix)]
#[test]
fn files_are_read_only_where_no_other_user_can() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "hunter2\n").unwrap();
    let reference = format!("file:{}", path.display());
    let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o600);
    assert_eq!(at(&reference).unwrap(), "hunter2");
    mode(0o640);
    let error = at(&reference).unwrap_err();
    assert!(error.contains("0600") && !error.contains("hunter2"), "{error}");
    assert!(at(&format!("file:{}", folder.path().display())).unwrap_err().contains("ordinary"));
    assert!(at("file:/no/such/file").is_err());
}

#[cfg(unix)]
#[test]
fn a_file_of_another_user_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "hunter2").unwrap();
    let given = std::process::Command::new("chown").arg("65534").arg(&path).status();
    if !given.is_ok_and(|given| given.success()) {
        assert!(std::env::var_os("CI").is_none(), "CI runs this as root");
        println!("SKIPPED: root, to give files away");
        return;
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).unwrap();
    assert!(at(&format!("file:{}", path.display())).unwrap_err().contains("65534"));
}

#[test]
fn templates_are_filled_in_and_literals_are_not() {
    let filled =
        |text: &str| Setting::Template(text.to_owned()).expose().map_err(|error| error.to_string());
    let path = std::env::var("PATH").unwrap();
    assert_eq!(filled("a ${PATH} b").unwrap(), format!("a {path} b"));
    assert_eq!(filled("${TOOLBOOTH_NO_SUCH:-x y}$HOME ${").unwrap(), "x y$HOME ${");
    assert!(filled("${TOOLBOOTH_NO_SUCH}").unwrap_err().contains("TOOLBOOTH_NO_SUCH"));
    assert_eq!(Setting::from("${PATH}").expose().unwrap(), "${PATH}");
    assert!(at("env:TOOLBOOTH_NO_SUCH").is_err());
    assert_eq!(format!("{:?}", Setting::from("hunter2")), "Literal(…)");
}

#[test]
fn only_secrets_are_concealed() {
    let settings = [
        Setting::Template("${TOOLBOOTH_NO_LEVEL:-info} level".to_owned()),
        Setting::Template("Bearer ${TOOLBOOTH_NO_TOKEN:-hunter2}".to_owned()),
        Setting::from("literal"),
    ];
    let said = "info level: literal, hunter2";
    let known = Setting::known(settings.iter().map(|setting| ("LEVEL", setting)));
    assert_eq!(known.conceal_text(said), "info level: literal, ${TOOLBOOTH_NO_TOKEN}");
    let under_a_name = [("API_KEY", &settings[2])];
    let known = Setting::known(under_a_name.into_iter());
    assert_eq!(known.conceal_text(said), "info level: <API_KEY>, hunter2");
}

#[test]
fn names_of_members_are_concealed_in_their_order() {
    let secret = Setting::Template("${TOOLBOOTH_NO_TOKEN:-hunter2}".to_owned());
    let longer = Setting::Template("${TOOLBOOTH_NO_SECRET:-hunter2-and-more}".to_owned());
    let known = Setting::known([("", &secret), ("", &longer)].into_iter());
    let mut document = serde_json::json!({
        "z": 1, "a hunter2": {"hunter2": "hunter2-and-more"}, "hunter2": [2],
        "${TOOLBOOTH_NO_TOKEN}": 3, "${TOOLBOOTH_NO_TOKEN}#2": 4, "b": 5,
    });
    known.conceal(&mut document);
    let expected = concat!(
        r#"{"z":1,"a ${TOOLBOOTH_NO_TOKEN}":{"${TOOLBOOTH_NO_TOKEN}":"#,
        r#""${TOOLBOOTH_NO_SECRET}"},"${TOOLBOOTH_NO_TOKEN}#3":[2],"#,
        r#""${TOOLBOOTH_NO_TOKEN}":3,"${TOOLBOOTH_NO_TOKEN}#2":4,"b":5}"#,
    );
    assert_eq!(document.to_string(), expected);
}

#[cfg(feature = "keyring")]
#[test]
fn what_the_key_ring_does_not_have_is_told() {
    let error = at("keyring:toolbooth-no-such-service/no-such-user").unwrap_err();
    assert!(error.starts_with("the secret `keyring:toolbooth-no-such"), "{error}");
}

#[cfg(not(feature = "keyring"))]
#[test]
fn without_a_key_ring_its_secrets_are_not_there() {
    assert!(at("keyring:mail/me").unwrap_err().contains("feature `keyring`"));
}
