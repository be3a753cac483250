namespace torsh {}
