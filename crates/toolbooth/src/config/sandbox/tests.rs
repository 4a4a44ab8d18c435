use super::*;

fn profile_setting(text: &str) -> Result<ProfileSetting, Failure> {
    let config: toml::Table = toml::from_str(text).unwrap();
    let said: Sandbox = config["sandbox"].clone().try_into().unwrap();
    Sandboxes::default().profile_setting(
        Some(&said),
        "servers.x.sandbox",
        Some(Path::new("/srv/x")),
    )
}

#[test]
fn sections_of_a_profile_take_the_place_of_the_bases() {
    let said =
        profile_setting("sandbox = { base = \"server\", net = { hosts = [\"a.example:443\"] } }");
    let Ok(ProfileSetting::Profile { profile, .. }) = said else { panic!("{said:?}") };
    assert_eq!(profile.net.unwrap().hosts, ["a.example:443"]);
    assert_eq!(profile.fs, server_profile().fs);
    let said =
        profile_setting("sandbox = { base = \"server\", fs = { write = [\"/srv/notes\"] } }");
    let Ok(ProfileSetting::Profile { profile, .. }) = said else { panic!("{said:?}") };
    let (fs, base) = (profile.fs.unwrap(), server_profile().fs.unwrap());
    assert_eq!((&fs.read, fs.tmp_mb), (&base.read, base.tmp_mb));
    assert_eq!(fs.write[0].path, "/srv/notes");
    let said =
        profile_setting("sandbox = { base = \"server\", fs = { read = [], write = [\"w\"] } }");
    let Ok(ProfileSetting::Profile { profile, .. }) = said else { panic!("{said:?}") };
    let fs = profile.fs.unwrap();
    assert_eq!((fs.read.len(), fs.tmp_mb), (0, base.tmp_mb), "an empty list is one");
    let said =
        profile_setting("sandbox = { base = \"server\", net = { hosts = [\"...\", \"*:80\"] } }");
    let Ok(ProfileSetting::Profile { profile, .. }) = said else { panic!("{said:?}") };
    assert_eq!(profile.net.unwrap().hosts, ["*", "*:80"]);
    let said = profile_setting("sandbox = { base = \"server\", limits = { memory_mb = 64 } }");
    let Ok(ProfileSetting::Profile { profile, .. }) = said else { panic!("{said:?}") };
    let limits = profile.limits.unwrap();
    assert_eq!((limits.memory_mb, limits.pids), (Some(64), Some(512)));
    assert!(!inherited(&base.read, Some(Path::new("/tmp"))).contains(&".".to_owned()));
    assert!(!inherited(&base.read, None).contains(&".".to_owned()));
    assert_eq!(profile_setting("sandbox = \"none\"").unwrap(), ProfileSetting::Free);
    let error = profile_setting("sandbox = \"defalt\"").unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("did you mean `default`?"));
    assert!(profile_setting("sandbox = { net = { hosts = [\"https://a\"] } }").is_err());
    let error = profile_setting("sandbox = { limits = { wall_ms = 5 } }").unwrap_err();
    assert!(error.message.contains("serves many"), "{error:?}");
    assert!(profile_setting("sandbox = { limits = { pids = 0 } }").is_err());
    let shadow = Sandboxes {
        profiles: [("server".to_owned(), Profile::default())].into(),
        ..Sandboxes::default()
    };
    assert!(shadow.check().is_err());
    let text = "[servers.x]\ncommand = \"x\"\nsandbox = { bse = \"default\" }\n";
    let error = crate::config::parse(text, "t.toml", Vec::new()).unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("did you mean `base`?"), "{error:?}");
}
