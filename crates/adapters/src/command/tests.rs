use super::*;

#[test]
fn commands_are_split_into_words_without_a_shell() {
    assert_eq!(words("a 'b c' $HOME").unwrap(), ["a", "b c", "$HOME"]);
    assert!(words("'open").is_err() && words("  ").is_err());
}

#[test]
fn each_end_has_its_own_code() {
    let unstarted = |program| {
        ProgramEnd::Unstarted(toolbooth_launcher::wire::Unstarted {
            step: "s".to_owned(),
            cause: "c".to_owned(),
            program,
        })
    };
    for (ended, kind, code) in [
        (ProgramEnd::Timeout("its time"), "timeout", ErrorCode::Timeout),
        (ProgramEnd::OutputLimit(String::new()), "output-limit", ErrorCode::ResultTooLarge),
        (ProgramEnd::MemoryLimit, "memory-limit", ErrorCode::AdapterFailed),
        (ProgramEnd::Cancelled, "cancelled", ErrorCode::Cancelled),
        (ProgramEnd::WriteLimit(String::new()), "output-limit", ErrorCode::ResultTooLarge),
        (unstarted(true), "launcher-error", ErrorCode::NotConfigured),
        (unstarted(false), "launcher-error", ErrorCode::SandboxUnavailable),
        (ProgramEnd::Lost, "launcher-error", ErrorCode::AdapterFailed),
    ] {
        let error = cut(&ended, true, "");
        assert_eq!((ended.kind(), error.code), (kind, code));
        assert!(error.internal.starts_with(kind), "{}", error.internal);
        assert_eq!(cut(&ended, false, "").effect, Effect::NotStarted);
    }
}
