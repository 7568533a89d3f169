"""Every message of the API as one struct, with its constraints and its documentation in the annotations."""
