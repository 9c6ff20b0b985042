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
        let mut taken = session.taken.get();
        taken.add(needs);
        session.taken.set(taken);
        Grant { context: context.clone(), session: session.clone(), needs }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let session = &self.session;
        session.taken.set(session.taken.get().minus(self.needs));
        self.context.shared.give(&session.share_of_user, self.needs);
        if !session.delayed.borrow().is_empty() {
            let action = Action::GoOn { session: session.id };
            self.context.actions.borrow_mut().push_back(action);
        }
    }
}
