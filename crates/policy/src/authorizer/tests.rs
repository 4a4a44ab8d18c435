use std::collections::BTreeMap;

use serde_json::{Value, json};
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::charge::Charge;
use toolbooth_contracts::history::WindowName;
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::{CallContext, Guard, Identity, ToolPattern};

use super::*;
use crate::caller::Grant;
use crate::error::EngineError;
use crate::{DependentVerdict, Question};

fn contract(id: &str, permissions: &[&str]) -> ToolContract {
    let entry = json!({"name": id, "input_schema": {"type": "object"}, "output_schema": {}, "permissions": permissions,
        "execution": {"localRuntimeId": "x"}});
    Guard::default().validate_entry(&entry).unwrap()
}

/// A call without arguments.
fn call<'c>(caller: &'c Caller, contract: &'c ToolContract) -> AskedCall<'c> {
    static CLAIMED: LazyLock<CallContext> = LazyLock::new(CallContext::default);
    let (arguments, claimed) = (&Value::Null, &*CLAIMED);
    AskedCall { caller, contract, arguments, claimed, at: "2026-01-01T00:00:00.000Z" }
}

fn on() -> FeatureFlags {
    FeatureFlags::ON
}

fn patterns(texts: &[&str]) -> Vec<ToolPattern> {
    texts.iter().map(|text| ToolPattern::try_from((*text).to_owned()).unwrap()).collect()
}

fn ops() -> CallerSets<CallerRights> {
    let rights = CallerRights {
        tools: Some(patterns(&["files.*"])),
        deny: patterns(&["files.delete"]),
        grants: vec![Grant::parse("read:*").unwrap()],
        operate: false,
        budget: None,
    };
    let set = (vec!["key:ops".to_owned()], rights);
    CallerSets::new(BTreeMap::from([("ops".to_owned(), set)])).unwrap()
}

fn code(result: Result<Access, Denial>) -> &'static str {
    result.map_or_else(|denial| denial.code.as_str(), |_| "ok")
}

#[test]
fn steps_decide_in_order() {
    let policy = Authorizer::new(on())
        .with_whitelist(Whitelist::parse("files.*").unwrap())
        .with_callers(ops());
    let caller = Caller::authenticated(Identity::named("key:ops").unwrap());
    let quarantined = ToolStatus::Quarantined("x".into());
    let at =
        |id: &str, status: &ToolStatus| code(policy.access(&caller, &contract(id, &[]), status));
    assert_eq!(at("files.read", &ToolStatus::Active), "ok");
    assert_eq!(
        at("files.delete", &quarantined),
        "unregistered-tool",
        "hidden comes before all else"
    );
    assert_eq!(at("mail.send", &ToolStatus::Active), "unregistered-tool");
    assert_eq!(at("files.read", &quarantined), "quarantined-tool");
    assert_eq!(at("files.read", &ToolStatus::Paused), "paused");
    let local = policy.access(&Caller::local(), &contract("mail.send", &[]), &quarantined);
    assert_eq!(code(local), "policy-denied", "the whitelist comes before quarantine");
    let stranger = policy.access(
        &Caller::authenticated(Identity::named("key:x").unwrap()),
        &contract("files.read", &[]),
        &ToolStatus::Active,
    );
    assert_eq!(code(stranger), "unregistered-tool");
    let off = Authorizer::new(FeatureFlags::default());
    assert_eq!(
        code(off.access(&Caller::local(), &contract("a.b", &[]), &ToolStatus::Active)),
        "tools-disabled"
    );
}

#[test]
fn whitelist_counts_only_while_enforced() {
    let flags = FeatureFlags { mcp_tools: true, tools_policy: false };
    let policy = Authorizer::new(flags).with_whitelist(Whitelist::only(vec![]));
    assert_eq!(
        code(policy.access(&Caller::local(), &contract("a.b", &[]), &ToolStatus::Active)),
        "ok"
    );
}

#[test]
fn each_missing_permission_is_named() {
    let policy = Authorizer::new(on()).with_callers(ops());
    let caller = Caller::authenticated(Identity::named("key:ops").unwrap());
    let tool = contract("files.copy", &["read:db", "write:db", "send:sms"]);
    let access = policy.access(&caller, &tool, &ToolStatus::Active).unwrap();
    let denial = policy.authorize(access, &call(&caller, &tool)).unwrap_err();
    assert_eq!(denial.missing, ["write:db", "send:sms"]);
    assert!(!policy.lists(&caller, &tool, &ToolStatus::Active));
}

#[test]
fn an_access_holds_for_its_own_call_only() {
    let policy = Authorizer::new(on());
    let (own, other) = (contract("a.b", &[]), contract("c.d", &[]));
    let local = Caller::local();
    let access = || policy.access(&local, &own, &ToolStatus::Active).unwrap();
    assert!(policy.authorize(access(), &call(&local, &own)).is_ok());
    let stricter = Authorizer::new(on()).with_engine(Arc::new(Broken));
    for denied in [
        policy.authorize(access(), &call(&local, &other)),
        policy.authorize(access(), &call(&Caller::operator(), &own)),
        stricter.authorize(access(), &call(&local, &own)),
    ] {
        let denial = denied.unwrap_err();
        assert_eq!(denial.rule, DenialRule::EngineError);
        assert!(denial.cause.unwrap().contains("another call"));
    }
}

struct Broken;
impl PolicyEngine for Broken {
    fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
        Err(EngineError("broken".into()))
    }
    fn version(&self) -> &str {
        "0"
    }
}

#[test]
fn an_error_inside_the_engine_is_a_deny() {
    let policy = Authorizer::new(on()).with_engine(Arc::new(Broken));
    let tool = contract("a.b", &[]);
    let access = policy.access(&Caller::local(), &tool, &ToolStatus::Active).unwrap();
    let denial = policy.authorize(access, &call(&Caller::local(), &tool)).unwrap_err();
    assert_eq!((denial.code, denial.rule), (ErrorCode::PolicyDenied, DenialRule::EngineError));
}

struct Panics;
impl PolicyEngine for Panics {
    fn judge(&self, question: &Question<'_>) -> Result<Verdict, EngineError> {
        match question.contract.tool_id.as_str() {
            "a.b" => panic!("a defect"),
            _ => Ok(Verdict::Depends(Arc::new(PanicsLater::default()))),
        }
    }
    fn version(&self) -> &str {
        "0"
    }
}

#[derive(Debug, Default)]
struct PanicsLater(BTreeMap<String, WindowName>);
impl DependentVerdict for PanicsLater {
    fn windows(&self) -> &BTreeMap<String, WindowName> {
        &self.0
    }
    fn complete(&self, _: &History, _: Option<&mut Vec<String>>) -> Result<Verdict, EngineError> {
        panic!("a defect")
    }
}

#[test]
fn a_panic_inside_the_engine_is_a_deny() {
    let enforced = Authorizer::new(on()).with_engine(Arc::new(Panics));
    let shadow = enforced.clone().with_rules_in_shadow();
    for tool in ["a.b", "c.d"] {
        let tool = contract(tool, &[]);
        let decide = |policy: &Authorizer| {
            let access = policy.access(&Caller::local(), &tool, &ToolStatus::Active).unwrap();
            let permit = policy.authorize(access, &call(&Caller::local(), &tool))?;
            match permit.windows() {
                Some(_) => policy.complete(&permit, &History::new(), None),
                None => Ok(permit),
            }
        };
        assert_eq!(decide(&enforced).unwrap_err().rule, DenialRule::EngineError);
        let passed = decide(&shadow).unwrap();
        assert_eq!(passed.shadow().map(|shadow| shadow.rule.as_str()), Some("engine-error"));
    }
}

#[test]
fn the_version_is_the_digest_of_the_policy_as_a_document() {
    let policy = Authorizer::new(on())
        .with_whitelist(Whitelist::only(patterns(&["files.*"])))
        .with_callers(ops())
        .with_approval_by_trust(
            vec!["vendor".into()],
            TrustLevels::with([("vendor".to_owned(), TrustLevel::Sandbox)].into()),
        )
        .with_budget(Budget { daily: Some(5), daily_per_epic: None })
        .with_engine(Arc::new(Broken))
        .with_rules_in_shadow();
    let bundle = policy.bundle();
    assert_eq!(
        bundle,
        json!({
            "flags": { "mcp_tools": true, "tools_policy": true },
            "mode": "shadow",
            "whitelist": ["files.*"],
            "callers": bundle["callers"],
            "approvalByTrust": ["vendor"],
            "trust": { "vendor": "sandbox" },
            "budget": { "daily": 5, "dailyPerEpic": null },
            "rules": { "version": "0" },
        })
    );
    let ops = &bundle["callers"]["ops"];
    assert_eq!(
        (&ops["match"], &ops["rights"]["tools"]),
        (&json!(["key:ops"]), &json!(["files.*"]))
    );
    let digest = Sha256::digest(canonical(&bundle));
    assert_eq!(policy.version(), HEXLOWER.encode(&digest[..16]));
    // A pause has an event of its own.
    let paused = policy.clone().with_pauses(Pauses::default());
    assert_eq!(paused.version(), policy.version());
}

#[test]
fn version_tells_settings_apart() {
    let one = Authorizer::new(on());
    assert_eq!(one.version(), Authorizer::new(on()).version());
    assert_ne!(one.version(), one.clone().with_whitelist(Whitelist::only(vec![])).version());
}

#[test]
fn a_trust_word_counts_as_the_level_that_it_is_mapped_to() {
    let asks = |approval: &[&str], word: &str| {
        let mut tool = contract("a.b", &[]);
        word.clone_into(&mut tool.policy.trust_level);
        let levels = TrustLevels::with([("vendor".to_owned(), TrustLevel::Sandbox)].into());
        let words = approval.iter().map(|word| (*word).to_owned()).collect();
        let policy = Authorizer::new(on()).with_approval_by_trust(words, levels);
        let access = policy.access(&Caller::local(), &tool, &ToolStatus::Active).unwrap();
        let permit = policy.authorize(access, &call(&Caller::local(), &tool));
        permit.unwrap().approval().is_some()
    };
    assert!(asks(&["untrusted"], "untrusted") && !asks(&["untrusted"], "trusted"));
    assert!(asks(&["untrusted"], "frobnicated"), "a word without a meaning is untrusted");
    assert!(asks(&["sandbox"], "vendor") && !asks(&["untrusted"], "vendor"));
    assert!(asks(&["vendor"], "vendor") && !asks(&["vendor"], "sandbox"));
}

#[test]
fn costs_are_charged_to_the_caller_and_to_its_epic() {
    let mut tool = contract("a.b", &[]);
    tool.policy.max_concurrency = Some(2);
    tool.policy.rate_limit_per_min = Some(9);
    let default = Budget { daily: Some(50), daily_per_epic: None };
    let charges = |tool: &ToolContract, caller: &str, epic: Option<&str>| {
        let mut sets = BTreeMap::new();
        let budget = Some(Budget { daily: Some(20), daily_per_epic: Some(10) });
        let rights = CallerRights { budget, ..CallerRights::everything() };
        sets.insert("key:a".to_owned(), (Vec::new(), rights));
        let policy =
            Authorizer::new(on()).with_callers(CallerSets::new(sets).unwrap()).with_budget(default);
        let caller = Caller::authenticated(Identity::named(caller).unwrap());
        let claimed = CallContext { epic_id: epic.map(str::to_owned), ..CallContext::default() };
        let access = policy.access(&caller, tool, &ToolStatus::Active).unwrap();
        let permit = policy
            .authorize(access, &AskedCall { claimed: &claimed, ..call(&caller, tool) })
            .unwrap();
        permit.charges().to_vec()
    };
    let limits = [Charge::Slots { max: 2 }, Charge::Rate { per_min: 9 }];
    assert_eq!(charges(&tool, "key:a", None), limits, "a tool without a cost has no budget");
    tool.policy.cost_units = Some(3.into());
    let of = |key: &str, limit| Charge::Budget { key: key.to_owned(), units: 3_000_000, limit };
    let own = [of("[\"key:a\"]", 20), of("[\"key:a\",\"e\"]", 10)];
    assert_eq!(charges(&tool, "key:a", Some("e"))[2..], own);
    assert_eq!(charges(&tool, "key:a", None)[3], of("[\"key:a\",null]", 10));
    assert_eq!(charges(&tool, "local", None)[2..], [of("[\"local\"]", 50)]);
}

/// An engine with one verdict.
struct Says(Result<Verdict, EngineError>);

impl PolicyEngine for Says {
    fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
        self.0.clone()
    }
    fn version(&self) -> &str {
        "0"
    }
}

#[test]
fn rules_in_shadow_pass_and_say_what_they_would_have_decided() {
    let permit =
        |approval: Option<ApprovalNeed>| Ok(Verdict::Permit { rule: "yes".into(), approval });
    let deny = Ok(Verdict::Deny { rule: "no".into(), reason: "No.".into() });
    let broken = Err(EngineError("broken".into()));
    let caller = Caller::authenticated(Identity::local());
    for (verdict, told, enforced) in [
        (permit(None), None, Some(false)),
        (permit(Some(ApprovalNeed::of_setting("ask", Approvers::One))), Some("ask"), Some(true)),
        (deny, Some("no"), None),
        (broken, Some("engine-error"), None),
    ] {
        let policy = Authorizer::new(on()).with_engine(Arc::new(Says(verdict)));
        let tool = contract("a.b", &[]);
        let decide = |policy: &Authorizer| {
            let access = policy.access(&caller, &tool, &ToolStatus::Active).unwrap();
            policy.authorize(access, &call(&caller, &tool))
        };
        let decided = decide(&policy).ok().map(|permit| permit.approval().is_some());
        assert_eq!(decided, enforced);
        let shadow = policy.clone().with_rules_in_shadow();
        assert_ne!(shadow.version(), policy.version());
        let permit = decide(&shadow).unwrap();
        assert_eq!(permit.shadow().map(|shadow| shadow.rule.as_str()), told);
        assert!(permit.approval().is_none());
    }
    // The other steps hold.
    let deny = Says(Ok(Verdict::Deny { rule: "no".into(), reason: "No.".into() }));
    let shadow = Authorizer::new(on()).with_engine(Arc::new(deny)).with_rules_in_shadow();
    let shadow = shadow.with_callers(ops());
    let ops = Caller::authenticated(Identity::named("key:ops").unwrap());
    let tool = contract("files.copy", &["write:db"]);
    let access = shadow.access(&ops, &tool, &ToolStatus::Active).unwrap();
    assert!(shadow.authorize(access, &call(&ops, &tool)).is_err());
}
