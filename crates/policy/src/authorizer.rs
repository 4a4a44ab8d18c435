//! The authorizer, which alone creates accesses and permits.
//!
//! The steps run in a fixed order, and the first denial decides. A decision is never a `bool`. An error inside an engine
//! is a denial. Without switches no tool can be called.
//!
//! Path: 3, 5. Doc: policy.md#steps

mod access;
mod judgement;

use std::sync::{Arc, LazyLock};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::history::{DeclaredWindow, History};
use toolbooth_contracts::json::canonical;
use toolbooth_contracts::trust::TrustLevels;
use toolbooth_contracts::{Caller, CallerKind, ErrorCode};

pub use self::access::Access;
pub use self::judgement::RuleFit;
pub(crate) use self::judgement::{Judged, caught};

use crate::caller::{Budget, CallerRights};
use crate::caller_sets::CallerSets;
use crate::denial::{Denial, DenialRule};
use crate::engine::{ApprovalNeed, PolicyEngine, Verdict};
use crate::error::EngineError;
use crate::flags::FeatureFlags;
use crate::pauses::Pauses;
use crate::permit::{AskedCall, Permit};
use crate::whitelist::Whitelist;

/// The current status of a tool, independent of the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolStatus {
    /// The tool may be used.
    #[default]
    Active,
    /// The tool no longer matches its approved version; the text describes the change.
    Quarantined(String),
    /// An operator paused the tool.
    Paused,
}

/// An authorizer that judges calls by flags, tool sets, whitelist, status, permissions, rules and
/// approvals.
#[derive(Clone)]
pub struct Authorizer {
    pub(crate) flags: FeatureFlags,
    pub(crate) whitelist: Whitelist,
    pub(crate) callers: CallerSets<CallerRights>,
    pub(crate) approval_by_trust: Vec<String>,
    pub(crate) trust_levels: TrustLevels,
    pub(crate) engine: Option<Arc<dyn PolicyEngine>>,
    /// Whether the rules of the engine are evaluated and not enforced.
    pub(crate) is_shadow: bool,
    version: String,
    document: Arc<str>,
    pauses: Arc<Pauses>,
    pub(crate) budget: Budget,
}

impl std::fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authorizer")
            .field("flags", &self.flags)
            .field("whitelist", &self.whitelist)
            .field("callers", &self.callers)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Authorizer {
    /// Creates an authorizer in which `local` and `operator` have all rights on everything that is registered, and other
    /// callers none. Its whitelist allows every tool; [`Authorizer::with_whitelist`] holds only with
    /// [`FeatureFlags::tools_policy`].
    #[must_use]
    pub fn new(flags: FeatureFlags) -> Self {
        Self {
            flags,
            whitelist: Whitelist::all(),
            callers: CallerSets::default(),
            approval_by_trust: Vec::new(),
            trust_levels: TrustLevels::default(),
            engine: None,
            is_shadow: false,
            version: String::new(),
            document: Arc::from(""),
            pauses: Arc::default(),
            budget: Budget::default(),
        }
        .versioned()
    }

    /// Returns the authorizer with a whitelist.
    #[must_use]
    pub fn with_whitelist(mut self, whitelist: Whitelist) -> Self {
        self.whitelist = whitelist;
        self.versioned()
    }

    /// Returns the authorizer with named sets of rights. If no set matches `local` or the operator, it
    /// retains the rights on everything. Any other caller without a set sees nothing.
    #[must_use]
    pub fn with_callers(mut self, callers: CallerSets<CallerRights>) -> Self {
        self.callers = callers;
        self.versioned()
    }

    /// Returns the authorizer, which then requires an approval for every tool of these trust levels. A
    /// word selects the tools that have it, and the name of a level also those whose word `levels` maps
    /// to it. A word that is not mapped counts as `untrusted`.
    #[must_use]
    pub fn with_approval_by_trust(mut self, words: Vec<String>, levels: TrustLevels) -> Self {
        self.approval_by_trust = words;
        self.trust_levels = levels;
        self.versioned()
    }

    /// Returns the authorizer with an engine that judges rules.
    #[must_use]
    pub fn with_engine(mut self, engine: Arc<dyn PolicyEngine>) -> Self {
        self.engine = Some(engine);
        self.versioned()
    }

    /// Returns the authorizer in shadow mode: it permits calls that its engine denies (step 6), and
    /// the permit states the denial.
    #[must_use]
    pub fn with_rules_in_shadow(mut self) -> Self {
        self.is_shadow = true;
        self.versioned()
    }

    /// Whether there is an engine, which judges calls at their time.
    #[must_use]
    pub fn has_engine(&self) -> bool {
        self.engine.is_some()
    }

    /// Returns the windows that count calls.
    #[must_use]
    pub fn windows(&self) -> Vec<DeclaredWindow> {
        self.engine.as_ref().map(|engine| engine.windows()).unwrap_or_default()
    }

    /// Returns the authorizer with a budget for each caller whose set of rights has none.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self.versioned()
    }

    /// Returns the authorizer with these pauses in force. Each has an event of its own, so the version
    /// stays.
    #[must_use]
    pub fn with_pauses(mut self, pauses: Pauses) -> Self {
        self.pauses = Arc::new(pauses);
        self
    }

    /// Returns the pauses in force.
    #[must_use]
    pub fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    fn versioned(mut self) -> Self {
        self.document = canonical(&self.bundle()).into();
        let digest = Sha256::digest(self.document.as_bytes());
        self.version = HEXLOWER.encode(digest.get(..16).unwrap_or(&digest));
        self
    }

    /// Returns the canonical form of [`Authorizer::bundle`], which has the version as its digest.
    #[must_use]
    pub fn document(&self) -> &Arc<str> {
        &self.document
    }

    /// Returns the version: the first 16 bytes of the SHA-256 of the canonical [`Authorizer::bundle`], in
    /// hex.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Checks that tools may be called: step 1, before any look-up.
    ///
    /// # Errors
    /// `tools-disabled`.
    pub fn enabled(&self) -> Result<(), Denial> {
        if self.flags.mcp_tools {
            Ok(())
        } else {
            Err(Denial::new(
                ErrorCode::ToolsDisabled,
                DenialRule::ToolsDisabled,
                "tool calls are switched off (`mcp_tools`)",
            ))
        }
    }

    /// Whether the whitelist is enforced.
    #[must_use]
    pub fn enforces_whitelist(&self) -> bool {
        self.flags.tools_policy
    }

    /// Returns the rights of a caller; `None` if it has no rights.
    #[must_use]
    pub fn rights(&self, caller: &Caller) -> Option<&CallerRights> {
        static EVERYTHING: LazyLock<CallerRights> = LazyLock::new(CallerRights::everything);
        let by_default = || match caller.kind() {
            CallerKind::Local | CallerKind::Operator => Some(&*EVERYTHING),
            CallerKind::Key | CallerKind::Jwt => None,
        };
        self.callers.of(caller).map(|(_, rights)| rights).or_else(by_default)
    }

    /// Returns the caller as an operator.
    ///
    /// # Errors
    /// `policy-denied` where the caller has no operator right.
    pub fn operator(&self, caller: &Caller) -> Result<crate::Operator, Denial> {
        let granted = || self.rights(caller).is_some_and(|rights| rights.operate);
        match caller.kind() == CallerKind::Operator || granted() {
            true => Ok(crate::Operator { caller: caller.clone() }),
            false => Err(Denial::new(
                ErrorCode::PolicyDenied,
                DenialRule::Operator,
                "this needs the right of an operator",
            )),
        }
    }

    /// Runs steps 2 to 4: visibility to the caller, whitelist, status of the tool.
    ///
    /// # Errors
    /// `unregistered-tool` where it is hidden, else `policy-denied`, `quarantined-tool`, `paused`.
    pub fn access(
        &self,
        caller: &Caller,
        contract: &ToolContract,
        status: &ToolStatus,
    ) -> Result<Access, Denial> {
        self.enabled()?;
        let tool_id = contract.tool_id.as_str();
        let rights = self.known(caller, tool_id, status)?;
        let missing = rights.missing(&contract.permissions);
        Ok(Access {
            missing: missing.into_iter().map(str::to_owned).collect(),
            caller: caller.clone(),
            tool_id: contract.tool_id.clone(),
            document: Arc::clone(&self.document),
        })
    }

    /// Whether a tool with this id is hidden from the caller, whether or not there is one.
    #[must_use]
    pub fn hides_tool(&self, caller: &Caller, tool_id: &str) -> bool {
        self.rights(caller).is_none_or(|rights| !rights.sees(tool_id))
    }

    /// Runs steps 2 to 4 for an id, of a tool or of an item.
    pub(crate) fn known(
        &self,
        caller: &Caller,
        id: &str,
        status: &ToolStatus,
    ) -> Result<&CallerRights, Denial> {
        let rights = self.rights(caller).filter(|rights| rights.sees(id)).ok_or_else(|| {
            let hidden = ErrorCode::UnregisteredTool;
            Denial::new(hidden, DenialRule::ToolSet, hidden.safe_sentence())
        })?;
        if self.flags.tools_policy && !self.whitelist.allows(id) {
            return Err(Denial::new(
                ErrorCode::PolicyDenied,
                DenialRule::Whitelist,
                "Blocked by whitelist policy",
            ));
        }
        match status {
            ToolStatus::Quarantined(_) => {
                let code = ErrorCode::QuarantinedTool;
                Err(Denial::new(code, DenialRule::Quarantine, code.safe_sentence()))
            }
            ToolStatus::Active if !self.pauses.has_caller(caller.name()) => Ok(rights),
            ToolStatus::Active | ToolStatus::Paused => {
                let code = ErrorCode::Paused;
                Err(Denial::new(code, DenialRule::Pause, code.safe_sentence()))
            }
        }
    }

    /// Whether steps 1 to 5 let the caller see the tool in a listing.
    #[must_use]
    pub fn lists(&self, caller: &Caller, contract: &ToolContract, status: &ToolStatus) -> bool {
        self.access(caller, contract, status).is_ok_and(|access| access.missing.is_empty())
    }

    /// Runs steps 5 to 9 with the final arguments.
    ///
    /// # Errors
    /// `policy-denied`; with the rule `engine-error` where the access is that of another caller, of another tool or of
    /// another policy.
    pub fn authorize(&self, access: Access, call: &AskedCall<'_>) -> Result<Permit, Denial> {
        self.authorize_traced(access, call, None)
    }

    /// As [`Authorizer::authorize`]; adds what the rules found to `trace`.
    pub(crate) fn authorize_traced(
        &self,
        access: Access,
        call: &AskedCall<'_>,
        trace: Option<&mut Vec<String>>,
    ) -> Result<Permit, Denial> {
        if !access.is_of(call, &self.document) {
            let error = EngineError("the access is that of another call".to_owned());
            return Err(Denial::of_engine(error));
        }
        if let Some(denial) = access.lacking() {
            return Err(denial);
        }
        self.permit(call, trace)
    }

    /// Completes a permit that depends on windows, with these; adds what the rules found to `trace`.
    ///
    /// # Errors
    /// `policy-denied`.
    pub fn complete(
        &self,
        permit: &Permit,
        history: &History,
        trace: Option<&mut Vec<String>>,
    ) -> Result<Permit, Denial> {
        let unknown = || EngineError("the rules depend on windows that are not known".into());
        let verdict = permit.depends.as_ref().ok_or_else(unknown);
        let verdict =
            verdict.and_then(|verdict| match caught(|| verdict.complete(history, trace))? {
                Verdict::Depends(_) => Err(unknown()),
                verdict => Ok(verdict),
            });
        let Judged { rule, approval: asked, shadow, .. } = self.enforced(verdict)?;
        let approval = asked.into_iter().chain(permit.approval.clone()).reduce(ApprovalNeed::and);
        Ok(Permit {
            charges: permit.charges.clone(),
            approval,
            rule,
            shadow: shadow.or_else(|| permit.uncountable.clone()),
            counted: permit.counted.clone(),
            uncountable: None,
            depends: None,
        })
    }

    /// Runs steps 6 to 9.
    fn permit(
        &self,
        call: &AskedCall<'_>,
        trace: Option<&mut Vec<String>>,
    ) -> Result<Permit, Denial> {
        let AskedCall { caller, contract, .. } = *call;
        let Judged { rule, approval: asked, mut shadow, counted, uncountable, depends } =
            self.judge(call, trace)?;
        if depends.is_none() {
            shadow = shadow.or_else(|| uncountable.clone());
        }
        // Of several approvals the strictest is needed, and it is bound to all that ask.
        let setting = self.approval_setting(contract);
        let approval = asked.into_iter().chain(setting).reduce(ApprovalNeed::and);
        let charges = self.charges(caller, contract, call.claimed);
        Ok(Permit { charges, approval, rule, shadow, counted, uncountable, depends })
    }
}

#[cfg(test)]
mod tests;
