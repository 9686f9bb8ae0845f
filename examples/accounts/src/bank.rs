//! The accounts. All servers apply the same entries in the same order, and so have the same
//! accounts.

use std::collections::BTreeMap;

use crate::service::{AccountsError, Change, Entry, RequestId, Transfer};

/// The state that the entries of the log make.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Bank {
    balances: BTreeMap<String, u64>,
    /// The transfer of each request and its outcome: a request that comes again changes nothing.
    outcomes: BTreeMap<RequestId, (Transfer, Result<u64, AccountsError>)>,
    changes: Vec<Change>,
}

impl Bank {
    /// A bank whose accounts have these balances.
    pub fn new(accounts: &[(&str, u64)]) -> Self {
        let balances = accounts.iter().map(|(name, money)| ((*name).to_owned(), *money)).collect();
        Self { balances, ..Self::default() }
    }

    /// Applies an entry of the log.
    pub fn apply(&mut self, entry: &Entry) {
        let Some((request, transfer)) = &entry.request else { return };
        if self.outcomes.contains_key(request) {
            return;
        }
        let outcome = self.pay(&transfer.from, &transfer.to, transfer.amount).map(|()| {
            let number = self.changes.len() as u64;
            let (request, transfer) = (request.clone(), transfer.clone());
            self.changes.push(Change { number, request, transfer });
            number
        });
        self.outcomes.insert(request.clone(), (transfer.clone(), outcome));
    }

    fn pay(&mut self, from: &str, to: &str, amount: u64) -> Result<(), AccountsError> {
        self.balance(to)?;
        let left = self.balance(from)?.checked_sub(amount).ok_or(AccountsError::NotEnough)?;
        self.balances.insert(from.to_owned(), left);
        *self.balances.get_mut(to).expect("the account was just there") += amount;
        Ok(())
    }

    /// The outcome of a request, if it was applied.
    ///
    /// # Errors
    ///
    /// The refusal of the transfer; [`AccountsError::Reused`], if the request was made for another
    /// one.
    pub fn outcome(
        &self,
        request: &RequestId,
        transfer: &Transfer,
    ) -> Option<Result<u64, AccountsError>> {
        let (known, outcome) = self.outcomes.get(request)?;
        Some(if known == transfer { outcome.clone() } else { Err(AccountsError::Reused) })
    }

    /// The balance of an account.
    ///
    /// # Errors
    ///
    /// [`AccountsError::NoAccount`].
    pub fn balance(&self, account: &str) -> Result<u64, AccountsError> {
        let found = self.balances.get(account).copied();
        found.ok_or_else(|| AccountsError::NoAccount(account.to_owned()))
    }

    /// The sum of all balances.
    pub fn total(&self) -> u64 {
        self.balances.values().sum()
    }

    /// The transfers that were made.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(request: &RequestId, amount: u64) -> Entry {
        Entry { epoch: 1, request: Some((request.clone(), transfer(amount))) }
    }

    fn transfer(amount: u64) -> Transfer {
        Transfer { from: "ann".to_owned(), to: "bob".to_owned(), amount }
    }

    #[test]
    fn a_used_request_makes_no_other_transfer() {
        let mut bank = Bank::new(&[("ann", 100), ("bob", 0)]);
        let request = ("client".to_owned(), 1);
        for amount in [30, 30, 50] {
            bank.apply(&entry(&request, amount));
        }
        assert_eq!(bank.outcome(&request, &transfer(30)), Some(Ok(0)));
        assert_eq!(bank.outcome(&request, &transfer(50)), Some(Err(AccountsError::Reused)));
        assert_eq!(bank.balance("bob"), Ok(30));
    }
}
