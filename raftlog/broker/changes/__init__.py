"""Every change that a broker proposes to the quorum on behalf of a client or an operator."""
