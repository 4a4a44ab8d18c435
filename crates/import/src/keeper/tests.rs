use super::*;

#[test]
fn secrets_are_kept_out_wherever_they_stand() {
    let shapes = toolbooth_contracts::secret::SecretShapes::with([
        toolbooth_adapters::secret_rules::shapes(),
    ]);
    let mut notices = Vec::new();
    let mut keeper =
        Keeper { server: "my-mail", folder: None, shapes: &shapes, notices: &mut notices };
    let secret = |kept: KeptSetting| match kept {
        KeptSetting::Text(text) | KeptSetting::Ordinary(text) => panic!("{text} is copied"),
        KeptSetting::Secret { variable, .. } => variable,
    };
    let text = |kept: KeptSetting| match kept {
        KeptSetting::Text(text) | KeptSetting::Ordinary(text) => text,
        KeptSetting::Secret { variable, .. } => panic!("{variable} is taken for a secret"),
    };
    assert_eq!(secret(keeper.named("env", "API_KEY", "hunter2".into())), "API_KEY");
    let header = keeper.named("headers", "Authorization", "Bearer x".into());
    assert_eq!(secret(header), "MY_MAIL_AUTHORIZATION");
    for fine in [("API_KEY", "${KEY}"), ("LEVEL", "debug"), ("API_KEY", "")] {
        assert_eq!(text(keeper.named("env", fine.0, fine.1.into())), fine.1);
    }
    let words = ["--token", "hunter2", "--api-key=hunter3", "--level", "debug", "--token", "${T}"];
    assert_eq!(
        keeper.arguments(words.map(str::to_owned).to_vec()),
        [
            "--token",
            "${MY_MAIL_TOKEN}",
            "--api-key=${MY_MAIL_API_KEY}",
            "--level",
            "debug",
            "--token",
            "${T}"
        ]
    );
    assert_eq!(
        keeper.url("https://h/mcp?api_key=hunter4&x=1".into()),
        "https://h/mcp?api_key=${MY_MAIL_API_KEY}&x=1"
    );
    assert_eq!(keeper.url("https://me:hunter5@h/mcp".into()), "${MY_MAIL_URL}");
    let path = "https://h/api/mcp/s/NjE4ZmQ3YTItMzRkZi00/mcp";
    assert_eq!(keeper.url(path.into()), "${MY_MAIL_URL}");
    let plain = "https://mcp.example.com/v1/my-server/sse?page=2";
    assert_eq!(keeper.url(plain.into()), plain);
    let weak = [
        "--pat",
        "hunter11",
        "-e",
        "PGPASSWORD=hunter12",
        "--db-pass=hunter13",
        "--auth-type",
        "oauth2",
        "--sort-key",
        "name",
    ];
    let kept = keeper.arguments(weak.map(str::to_owned).to_vec());
    assert!(!kept.concat().contains("hunter"), "{kept:?}");
    assert_eq!(kept[5..], ["--auth-type", "oauth2", "--sort-key", "name"]);
    let more = [
        "-e",
        "GITHUB_TOKEN=hunter6",
        "--header",
        "X-Api-Key: hunter7",
        "--header",
        "Authorization: Bearer ${T}",
        "API_TOKEN=hunter8 serve",
        "postgres://u:hunter9@${HOST}/db",
    ];
    let kept = keeper.arguments(more.map(str::to_owned).to_vec());
    assert_eq!(kept[1], "GITHUB_TOKEN=${MY_MAIL_GITHUB_TOKEN}");
    assert_eq!(kept[3], "X-Api-Key: ${MY_MAIL_X_API_KEY}");
    assert_eq!(kept[5], "Authorization: Bearer ${T}");
    assert_eq!(kept[6], "API_TOKEN=${MY_MAIL_API_TOKEN} serve");
    assert!(!kept.concat().contains("hunter"), "{kept:?}");
    let odd = keeper.named("env", "DB_PASSWORD", "hunter8${x".into());
    assert_eq!(secret(odd), "DB_PASSWORD");
    let default = keeper.named("env", "API_KEY", "${API_KEY:-hunter10}".into());
    assert_eq!(secret(default), "API_KEY", "a default is a literal");
    let level = keeper.named("env", "LEVEL", "${LEVEL:-info}".into());
    assert_eq!(text(level), "${LEVEL:-info}");
    assert_eq!(notices.len(), 12, "{notices:?}");
    assert!(!notices.join(" ").contains("hunter"), "{notices:?}");
    assert_eq!(variable(&["9 a-b", "c"]), "_9_A_B_C");
}
