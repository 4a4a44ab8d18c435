//! Step 9: the limits that a call is charged to.
//!
//! Path: 5. Doc: policy.md#charges

use toolbooth_contracts::charge::{Charge, budget_of_caller, budget_of_epic, micro_units};
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::{CallContext, Caller};

use crate::authorizer::Authorizer;
use crate::caller::Budget;

impl Authorizer {
    /// Returns the limits of the tool, and the budgets of the caller.
    pub(crate) fn charges(
        &self,
        caller: &Caller,
        contract: &ToolContract,
        claimed: &CallContext,
    ) -> Vec<Charge> {
        let policy = &contract.policy;
        let mut charges = Vec::new();
        charges.extend(policy.max_concurrency.map(|max| Charge::Slots { max }));
        charges.extend(policy.rate_limit_per_min.map(|per_min| Charge::Rate { per_min }));
        let units = policy.cost_units.as_ref().map_or(0, micro_units);
        if units > 0 {
            let own = self.rights(caller).and_then(|rights| rights.budget);
            let Budget { daily, daily_per_epic } = own.unwrap_or(self.budget);
            let budget = |key, limit| Charge::Budget { key, units, limit };
            charges.extend(daily.map(|limit| budget(budget_of_caller(caller.name()), limit)));
            charges.extend(daily_per_epic.map(|limit| {
                budget(budget_of_epic(caller.name(), claimed.epic_id.as_deref()), limit)
            }));
        }
        charges
    }
}
