//! The accounts. All servers apply the same entries in the same order, and so have the same accounts.

use std::collections::BTreeMap;

use crate::service::{AccountsError, Change, Entry, RequestId};

/// The state that the entries of the log make.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Bank {
    balances: BTreeMap<String, u64>,
    /// What each request has come to: a request that comes again changes nothing.
    outcomes: BTreeMap<RequestId, Result<u64, AccountsError>>,
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
            self.changes.push(Change { number, transfer: transfer.clone() });
            number
        });
        self.outcomes.insert(request.clone(), outcome);
    }

    fn pay(&mut self, from: &str, to: &str, amount: u64) -> Result<(), AccountsError> {
        self.balance(to)?;
        let left = self.balance(from)?.checked_sub(amount).ok_or(AccountsError::NotEnough)?;
        self.balances.insert(from.to_owned(), left);
        *self.balances.get_mut(to).expect("the account was just there") += amount;
        Ok(())
    }

    /// What a request has come to, if it was applied.
    pub fn outcome(&self, request: &RequestId) -> Option<Result<u64, AccountsError>> {
        self.outcomes.get(request).cloned()
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
