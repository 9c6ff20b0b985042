//! What a request took of its session's, its user's and the whole's share.

use std::rc::Rc;

use super::{Action, Context};
use crate::budget::Needs;
use crate::session::Session;

/// What a request took; given back when dropped.
pub(crate) struct Grant {
    context: Rc<Context>,
    session: Rc<Session>,
    needs: Needs,
}

impl Grant {
    /// Of what was taken for the user and for all; notes it for the session.
    pub(crate) fn of(context: &Rc<Context>, session: &Rc<Session>, needs: Needs) -> Grant {
        session.allowance.take(needs);
        Grant { context: context.clone(), session: session.clone(), needs }
    }

    /// Of whose share it is.
    pub(crate) fn session(&self) -> &Rc<Session> {
        &self.session
    }
}

impl Drop for Grant {
    #[inline(always)]
    fn drop(&mut self) {
        let allowance = &self.session.allowance;
        allowance.give_back(self.needs);
        self.context.shared.give(&allowance.user, self.needs);
        if allowance.is_waited_for() {
            let action = Action::GoOn { session: self.session.id };
            self.context.actions.borrow_mut().push_back(action);
        }
    }
}
