//! Authorizes requests for prompts, resources and templates, by the steps of the authorizer.
//!
//! Path: 3, 5. Doc: policy.md#prompts-and-resources

use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::port::ItemKind;
use toolbooth_contracts::{CallContext, Caller, ErrorCode};

use crate::authorizer::{Authorizer, Judged, ToolStatus, caught};
use crate::denial::{Denial, DenialRule};
use crate::engine::{ItemQuestion, Verdict};
use crate::error::EngineError;
use crate::item::{Item, permission};

/// A permit for an item. Only [`Authorizer::permit_item`] creates one.
#[derive(Debug)]
#[must_use]
pub struct ItemPermit {
    rule: String,
    shadow: Option<DecisionSummary>,
}

impl ItemPermit {
    /// As [`crate::Permit::shadow`].
    #[must_use]
    pub fn shadow(&self) -> Option<&DecisionSummary> {
        self.shadow.as_ref()
    }

    /// Returns the permit as records store it.
    #[must_use]
    pub fn summary(&self) -> DecisionSummary {
        DecisionSummary { rule: self.rule.clone(), reason: "permitted".to_owned() }
    }
}

impl Authorizer {
    /// Runs all steps for a prompt, a resource or a template: flags, tool sets, whitelist, status,
    /// permissions, rules. With the context that the agent claims, and the time (RFC 3339 UTC).
    ///
    /// # Errors
    /// `tools-disabled`; `unregistered-tool` where it is hidden; `policy-denied`,
    /// `quarantined-tool`, `paused`.
    pub fn permit_item(
        &self,
        caller: &Caller,
        item: &Item<'_>,
        status: &ToolStatus,
        claimed: &CallContext,
        at: &str,
    ) -> Result<ItemPermit, Denial> {
        self.item_access(caller, item, status)?;
        let Some(engine) = &self.engine else {
            return Ok(ItemPermit { rule: "default".to_owned(), shadow: None });
        };
        let grants = self.rights(caller).map(|rights| rights.grants.as_slice());
        let grants = grants.unwrap_or_default();
        let caller = caller.identity();
        let question = ItemQuestion { caller, grants, item, claimed, at };
        let verdict = caught(|| match engine.judge_item(&question)? {
            Verdict::Depends(_) => Err(EngineError(
                "the rules depend on windows, which only calls of tools have".into(),
            )),
            verdict => Ok(verdict),
        });
        match self.enforced(verdict)? {
            Judged { approval: Some(need), .. } => Err(Denial::new(
                ErrorCode::PolicyDenied,
                DenialRule::Engine(need.rule),
                "this would need an approval, which only calls of tools can have",
            )),
            Judged { rule, shadow, .. } => Ok(ItemPermit { rule, shadow }),
        }
    }

    /// Whether steps 1 to 5 let the caller see the item in a listing.
    #[must_use]
    pub fn lists_item(&self, caller: &Caller, item: &Item<'_>, status: &ToolStatus) -> bool {
        self.item_access(caller, item, status).is_ok()
    }

    /// Whether a request for the item is answered as if it did not exist, regardless of its status.
    #[must_use]
    pub fn hides_item(&self, caller: &Caller, item: &Item<'_>) -> bool {
        self.rights(caller).is_none_or(|rights| !rights.sees(item.id))
    }

    /// Whether the caller may have any item of this kind of a server.
    #[must_use]
    pub fn may_have_of(&self, caller: &Caller, kind: ItemKind, server: &str) -> bool {
        self.enabled().is_ok()
            && self.rights(caller).is_some_and(|rights| {
                rights.sees_some_of(server) && self.grants_of(caller, kind, server).is_ok()
            })
    }

    /// Whether the caller may see any tool of a server.
    #[must_use]
    pub fn may_call_of(&self, caller: &Caller, server: &str) -> bool {
        self.enabled().is_ok()
            && self.rights(caller).is_some_and(|rights| rights.sees_some_of(server))
    }

    fn item_access(
        &self,
        caller: &Caller,
        item: &Item<'_>,
        status: &ToolStatus,
    ) -> Result<(), Denial> {
        self.enabled()?;
        let _ = self.known(caller, item.id, status)?;
        self.grants_of(caller, item.kind, item.server)
    }

    fn grants_of(&self, caller: &Caller, kind: ItemKind, server: &str) -> Result<(), Denial> {
        let everywhere = permission(kind).to_owned();
        let here = format!("{everywhere}/{server}");
        let granted = self.rights(caller).is_some_and(|rights| {
            rights.grants.iter().any(|grant| grant.covers(&here) || grant.covers(&everywhere))
        });
        if granted {
            return Ok(());
        }
        let reason = format!("missing permissions: {here}");
        Err(Denial {
            missing: vec![here],
            ..Denial::new(ErrorCode::PolicyDenied, DenialRule::Permissions, reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use toolbooth_contracts::approval::Approvers;
    use toolbooth_contracts::history::{History, WindowName};
    use toolbooth_contracts::{Identity, ToolPattern};

    use super::*;
    use crate::{
        ApprovalNeed, CallerRights, CallerSets, DependentVerdict, FeatureFlags, Grant,
        PolicyEngine, Question, Whitelist,
    };

    fn patterns(texts: &[&str]) -> Vec<ToolPattern> {
        texts.iter().map(|text| ToolPattern::try_from((*text).to_owned()).unwrap()).collect()
    }

    fn policy(tools: &[&str], deny: &[&str], grants: &[&str]) -> Authorizer {
        let rights = CallerRights {
            tools: Some(patterns(tools)),
            deny: patterns(deny),
            grants: grants.iter().map(|grant| Grant::parse(grant).unwrap()).collect(),
            operate: false,
            budget: None,
        };
        let sets = BTreeMap::from([("key:a".to_owned(), (Vec::new(), rights))]);
        Authorizer::new(FeatureFlags::ON).with_callers(CallerSets::new(sets).unwrap())
    }

    const AT: &str = "2026-01-01T00:00:00.000Z";
    const GREET: Item<'_> = Item { kind: ItemKind::Prompt, server: "s", id: "s.greet" };
    const FILE: Item<'_> = Item { kind: ItemKind::Resource, server: "s", id: "s.file:///a" };

    fn ask(policy: &Authorizer, item: &Item<'_>, status: &ToolStatus) -> Result<(), Denial> {
        let caller = Caller::authenticated(Identity::named("key:a").unwrap());
        policy.permit_item(&caller, item, status, &CallContext::default(), AT).map(drop)
    }

    fn code(policy: &Authorizer, item: &Item<'_>) -> &'static str {
        ask(policy, item, &ToolStatus::Active).map_or_else(|denial| denial.code.as_str(), |()| "ok")
    }

    #[test]
    fn sets_hide_and_grants_deny_by_server() {
        let whole = policy(&["s.*"], &[], &["use:prompts", "read:resources/s"]);
        assert_eq!((code(&whole, &GREET), code(&whole, &FILE)), ("ok", "ok"));
        let one = policy(&["s.greet"], &[], &["*"]);
        assert_eq!((code(&one, &GREET), code(&one, &FILE)), ("ok", "unregistered-tool"));
        let but = policy(&["s.*"], &["s.file:///*"], &["*"]);
        assert_eq!((code(&but, &GREET), code(&but, &FILE)), ("ok", "unregistered-tool"));
        let caller = Caller::authenticated(Identity::named("key:a").unwrap());
        assert!(but.hides_item(&caller, &FILE) && !but.hides_item(&caller, &GREET));
        assert!(but.hides_item(&Caller::authenticated(Identity::named("key:b").unwrap()), &GREET));
        let other = policy(&["s.*"], &[], &["use:prompts/t", "read:*"]);
        assert_eq!(code(&other, &FILE), "ok");
        let denial = ask(&other, &GREET, &ToolStatus::Active).unwrap_err();
        assert_eq!(
            (denial.rule.as_str(), denial.missing),
            ("permissions", vec!["use:prompts/s".to_owned()])
        );
        let off = Authorizer::new(FeatureFlags::default());
        assert_eq!(code(&off, &GREET), "tools-disabled");
    }

    #[test]
    fn the_order_is_that_of_tools() {
        let whole = policy(&["s.*"], &[], &[]).with_whitelist(Whitelist::only(patterns(&["t.*"])));
        let odd = ToolStatus::Quarantined("x".into());
        let rule = |policy: &Authorizer, status: &ToolStatus| {
            ask(policy, &GREET, status).unwrap_err().rule.as_str().to_owned()
        };
        assert_eq!(rule(&whole, &odd), "whitelist");
        let whole = whole.with_whitelist(Whitelist::only(patterns(&["s.*"])));
        assert_eq!(rule(&whole, &odd), "quarantine");
        assert_eq!(rule(&whole, &ToolStatus::Paused), "pause");
        assert_eq!(rule(&whole, &ToolStatus::Active), "permissions");
    }

    struct Silent(bool);
    impl PolicyEngine for Silent {
        fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
            Ok(Verdict::Permit { rule: "all".into(), approval: None })
        }
        fn judge_item(&self, question: &ItemQuestion<'_>) -> Result<Verdict, EngineError> {
            match question.item.kind {
                ItemKind::Prompt => Err(EngineError("broken".into())),
                ItemKind::Template => Ok(Verdict::Depends(Arc::new(Windows::default()))),
                ItemKind::Resource => Ok(Verdict::Permit {
                    rule: "files".into(),
                    approval: self.0.then(|| ApprovalNeed::of_setting("files", Approvers::One)),
                }),
            }
        }
        fn version(&self) -> &str {
            "1"
        }
    }
    #[derive(Debug, Default)]
    struct Windows(BTreeMap<String, WindowName>);
    impl DependentVerdict for Windows {
        fn windows(&self) -> &BTreeMap<String, WindowName> {
            &self.0
        }
        fn complete(
            &self,
            _: &History,
            _: Option<&mut Vec<String>>,
        ) -> Result<Verdict, EngineError> {
            Ok(Verdict::Permit { rule: "all".into(), approval: None })
        }
    }
    struct ToolsOnly;
    impl PolicyEngine for ToolsOnly {
        fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
            Ok(Verdict::Permit { rule: "all".into(), approval: None })
        }
        fn version(&self) -> &str {
            "1"
        }
    }

    #[test]
    fn rules_that_do_not_speak_of_items_permit_none() {
        let whole = || policy(&["s.*"], &[], &["*"]);
        let rule = |policy: &Authorizer, item| {
            ask(policy, item, &ToolStatus::Active).unwrap_err().rule.as_str().to_owned()
        };
        assert_eq!(rule(&whole().with_engine(Arc::new(ToolsOnly)), &FILE), "no-rule");
        let speaks = whole().with_engine(Arc::new(Silent(false)));
        assert_eq!(rule(&speaks, &GREET), "engine-error");
        assert_eq!(code(&speaks, &FILE), "ok");
        let template = Item { kind: ItemKind::Template, ..FILE };
        assert_eq!(rule(&speaks, &template), "engine-error");
        assert_eq!(rule(&whole().with_engine(Arc::new(Silent(true))), &FILE), "files");
    }

    #[test]
    fn servers_are_offered_where_something_of_them_may_be_seen() {
        let caller = Caller::authenticated(Identity::named("key:a").unwrap());
        let may = |tools: &[&str], deny: &[&str], grants: &[&str]| {
            policy(tools, deny, grants).may_have_of(&caller, ItemKind::Prompt, "s")
        };
        assert!(may(&["s.*"], &[], &["*"]) && may(&["s.greet"], &[], &["*"]));
        assert!(may(&["*"], &["s.greet"], &["use:prompts/s"]));
        assert!(!may(&["t.*"], &[], &["*"]) && !may(&["*"], &["s.*"], &["*"]));
        assert!(!may(&["s.*"], &[], &["read:*"]));
    }
}
