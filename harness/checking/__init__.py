"""Does a method have its properties, and is it as good as its recorded baseline?"""
